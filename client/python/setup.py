# SPDX-License-Identifier: MIT
"""The wheel's version and tag; everything else is in pyproject.toml.

With libzeroclient in the package the wheel is of this platform, for any Python; without it, of any
platform, and the package looks for the installed library.
"""
import pathlib
import re

from setuptools import setup
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = pathlib.Path(__file__).resolve().parent
BINARY = (HERE / "zeroclient" / "libzeroclient.so.0").exists()


def version() -> str:
    """That of the CMake project, which writes it beside a copy of this file."""
    stated = HERE / "VERSION"
    if stated.exists():
        return stated.read_text().strip()
    project = (HERE.parents[1] / "CMakeLists.txt").read_text()
    found = re.search(r"^project\(zerod VERSION ([0-9.]+)", project, re.MULTILINE)
    if found is None:
        raise SystemExit(f"{HERE.parents[1]}/CMakeLists.txt states no version of project zerod")
    return found[1]


class Package(Distribution):
    def has_ext_modules(self) -> bool:
        return BINARY


class Wheel(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(version=version(), distclass=Package, cmdclass={"bdist_wheel": Wheel})
