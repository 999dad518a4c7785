# SPDX-License-Identifier: MIT
"""Where tests with torch find the package and the helpers of tests/integration. Import it first.

ZERO_BUILD names the build folder. Processes that a test starts inherit what is set here.
"""
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("ZERO_BUILD", SOURCE / "build" / "test")).resolve()
PACKAGE = SOURCE / "client" / "python"

os.environ["ZERO_BUILD"] = str(BUILD)
os.environ["ZEROCLIENT_LIBRARY"] = str(BUILD / "client" / "libzeroclient.so")
os.environ["PYTHONPATH"] = str(PACKAGE)
os.environ["OMP_NUM_THREADS"] = "1"
# Nothing is fetched: models of transformers are made of their configs.
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path[:0] = [str(PACKAGE), str(SOURCE / "tests" / "integration")]


def check_build():
    """Says it at once if the build is not there."""
    if not (BUILD / "deploy" / "zerorun").exists():
        sys.exit(f"{BUILD} has no zerorun: build it, and name its folder by ZERO_BUILD")
