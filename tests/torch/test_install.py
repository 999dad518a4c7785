#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""What is installed trains, without the source tree: the wheel in an environment of its own, and
the package of `cmake --install`, each with its own libzeroclient and the same weights."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from place import BUILD
from harness import check, done

ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in ("PYTHONPATH", "ZEROCLIENT_LIBRARY")}
LIBRARY = """
import zeroclient.torch
lines = [line for line in open("/proc/self/maps") if "libzeroclient" in line]
paths = {line.split(None, 5)[5].strip() for line in lines}
print(zeroclient.__version__, zeroclient.__file__, *paths, sep="\\n")
"""


def run(folder, *command, **environment):
    """Its output; it has to end well."""
    out = subprocess.run([str(part) for part in command], cwd=folder, text=True, timeout=600,
                         env={**ENVIRONMENT, **environment}, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    check(out.returncode == 0, f"{command} ended with {out.returncode}:\n{out.stdout}")
    return out.stdout


def make_environment(folder, wheel):
    """A fresh environment with the wheel; its torch is that of the tests."""
    run(folder, sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run(folder, python, "-m", "pip", "install", "--no-index", "--no-deps", wheel)
    site = run(folder, python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    pathlib.Path(site.strip(), "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def places(folder, python, **environment):
    version, package, *libraries = run(folder, python, "-c", LIBRARY, **environment).splitlines()
    check(len(libraries) == 1, f"one library is loaded: {libraries}")
    return version, pathlib.Path(package), pathlib.Path(libraries[0])


def train(folder, prefix, python, **environment):
    script = next(prefix.rglob("zerod/examples/train_gpt.py"))
    out = run(folder, prefix / "bin" / "zerorun", "-n", "2", "--runtime-dir", folder / "run", "--",
              python, script, "--steps", "3", **environment)
    found = re.search(r"weights sha256=([0-9a-f]{64}) step=3 ", out)
    check(found, f"3 steps, and a hash of the weights:\n{out}")
    return found and found[1]


def broken(folder, python, library):
    """A library that is there and cannot be loaded is named, and no other is taken."""
    library.write_bytes(b"not a library")
    out = subprocess.run([str(python), "-c", "import zeroclient"], cwd=folder, env=ENVIRONMENT,
                         text=True, capture_output=True, timeout=600)
    check(out.returncode == 1 and "ImportError" in out.stderr and str(library) in out.stderr,
          f"a broken library is an error that names it: {out.stderr}")


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-")).resolve()
    prefix = folder / "prefix"
    try:
        run(folder, "cmake", "--build", BUILD, "--target", "wheel")
        run(folder, "cmake", "--install", BUILD, "--prefix", prefix)
        version = run(folder, prefix / "bin" / "zerod", "--version").split()[1]
        wheels = list((BUILD / "client" / "python" / "dist").iterdir())
        check(re.fullmatch(rf"zeroclient-{re.escape(version)}-py3-none-linux_\w+\.whl",
                           wheels[0].name) and len(wheels) == 1, f"one wheel: {wheels}")

        python = make_environment(folder, wheels[0])
        found, package, library = places(folder, python)
        check(found == version, f"the wheel has version {found} of the library, not {version}")
        check(package.is_relative_to(folder / "venv"), f"the wheel's package is {package}")
        check(library.parent == package.parent, f"the wheel's library is {library}")
        check((package.parent / "py.typed").exists(), "the wheel has types")

        path = str(next(prefix.rglob("zerod/python")))
        _, package, library = places(folder, sys.executable, PYTHONPATH=path)
        check(package.is_relative_to(path), f"the installed package is {package}")
        check(library == next(prefix.rglob("libzeroclient.so.0")).resolve(),
              f"the installed library is {library}")

        hashes = [train(folder, prefix, python),
                  train(folder, prefix, sys.executable, PYTHONPATH=path)]
        check(hashes[0] == hashes[1], f"wheel and installed package: {hashes}")
        broken(folder, python, places(folder, python)[2])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    done()


if __name__ == "__main__":
    main()
