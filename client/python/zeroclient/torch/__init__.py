# SPDX-License-Identifier: MIT
"""zerod for PyTorch: initialize() gives an nn.Module's state to the daemons."""
from .engine import Engine, initialize
from .guard import WeightsAreReadOnly
from .layers import describe_layers

__all__ = ["Engine", "WeightsAreReadOnly", "describe_layers", "initialize"]
