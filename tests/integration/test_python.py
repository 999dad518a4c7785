#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# Label: plain
"""The Python package without torch: its structs are the headers', its errors are codes.def's, a
trainer in Python gets the numbers that a float64 reference gets, and Ctrl-C ends a wait."""
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys

from harness import BUILD, SOURCE, Group, check, config, done

os.environ["ZEROCLIENT_LIBRARY"] = str(BUILD / "client" / "libzeroclient.so")
sys.path.insert(0, str(SOURCE / "client" / "python"))
from zeroclient import _lib, errors  # noqa: E402

STRUCTS = {"zero_tensor_spec": _lib.TensorSpec, "zero_layer_spec": _lib.LayerSpec,
           "zero_model_spec": _lib.ModelSpec, "zero_layer_info": _lib.LayerInfo,
           "zero_tensor_info": _lib.TensorInfo, "zero_span": _lib.Span, "zero_detail": _lib.Detail,
           "zero_attach_options": _lib.AttachOptions, "zero_client_info": _lib.ClientInfo,
           "zero_scalar": _lib.Scalar, "zero_step_args": _lib.StepArgs,
           "zero_step_result": _lib.StepResult}


def test_structs():
    run = subprocess.run([str(BUILD / "tests" / "abi")], capture_output=True, text=True, check=True)
    headers = json.loads(run.stdout)
    check(headers["ZERO_ABI"] == _lib.ABI, "the package was made for another ABI")
    for name, number in (("ZERO_MAX_BLOB", _lib.MAX_BLOB), ("ZERO_MAX_SCALARS", _lib.MAX_SCALARS),
                         ("ZERO_MAX_SCALAR_NAME", _lib.MAX_SCALAR_NAME)):
        check(headers[name] == number, name)
    for name, kind in STRUCTS.items():
        ours = {"": [ctypes.sizeof(kind), 0]}
        for field, _ in kind._fields_:
            place = getattr(kind, field)
            ours[field] = [place.size, place.offset]
        check(ours == headers[name], f"{name}: headers {headers[name]}, package {ours}")


def test_errors():
    text = (SOURCE / "proto" / "codes.def").read_text()
    codes = {int(number): (name, scope)
             for name, number, scope in re.findall(r"^CODE\((\w+), (\d+), (\w+),", text, re.M)}
    check(len(codes) > 20, "codes.def was not read")
    scopes = {"REQUEST": errors.RequestError, "SESSION": errors.SessionError,
              "GROUP": errors.GroupError, "NODE": errors.NodeError}
    check(set(codes) == set(errors.BY_CODE), "codes differ")
    for number, (name, scope) in codes.items():
        kind = errors.BY_CODE.get(number, errors.ZeroError)
        check(kind.name == name and issubclass(kind, scopes[scope]), f"{name}: {kind}")


def trainer(name, world, **settings):
    script = pathlib.Path(__file__).with_name("python_trainer.py")
    group = Group(world, [sys.executable, script, name], config(world, **settings))
    code = group.wait()
    lines = [group.rank_json(rank) for rank in range(world)]
    if code != 0:
        print(group.stdout(), group.stderr())
    check(code == 0, f"{name}: exit code {code}")
    group.close()
    return lines


def test_training():
    for stage in (0, 3):
        for lines in trainer("train", 2, stage=stage):
            check(len(lines) == 1 and lines[0]["wrong"] == [], f"stage {stage}: {lines}")


def test_interrupt():
    first, second = trainer("interrupt", 2)
    check([l["what"] for l in first] == ["interrupted", "stepped"], f"{first}")
    check([l["what"] for l in second] == ["stepped"], f"{second}")


if __name__ == "__main__":
    test_structs()
    test_errors()
    test_training()
    test_interrupt()
    done()
