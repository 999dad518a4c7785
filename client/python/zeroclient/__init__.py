# SPDX-License-Identifier: MIT
"""zeroclient: trainers and observers of zerod in Python, without a compiler and without copies."""
from .client import Client, Info, Layer, Observer, StepResult, Tensor, library
from .errors import ZeroError

__version__ = library.zero_version().decode()
__all__ = ["Client", "Info", "Layer", "Observer", "StepResult", "Tensor", "ZeroError"]
