#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Checkpoints are plain safetensors to others, and what zeroctl makes of them is what is in them.

The files are read here by a parser of this test's own, which knows the format's rules and nothing of
zerod's code, and by the safetensors package where Python has it.
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy

try:
    import safetensors
    import safetensors.numpy
except ImportError:
    safetensors = None

BUILD = pathlib.Path(os.environ.get("ZERO_BUILD", "build/test")).resolve()
SAVER = BUILD / "tests" / "saver"
ZEROCTL = BUILD / "client" / "ctl" / "zeroctl"
STATES = ["param", "master", "moment1", "moment2", "max_moment2"]
SIZES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "F64": 8}
TENSORS = [('embed "quoted\\" ä', [37, 41]), ("a@256", [7]), ("h.0/weight", [1500, 300]),
           ("a", [70001]), ("scalar", []), ("one", [1])]

failures = []


def check(fact, text):
    if not fact:
        failures.append(text)
        print(f"FAIL {text}", flush=True)


def once(pairs):
    """An object of JSON in which no key comes twice."""
    out = dict(pairs)
    check(len(out) == len(pairs), f"a key comes twice in {[k for k, _ in pairs][:5]}")
    return out


def parse(path):
    """{name: (dtype, shape, array)} by the format's rules; each offset is looked at."""
    data = path.read_bytes()
    length, = struct.unpack("<Q", data[:8])
    text = data[8:8 + length].decode()
    check(text.startswith("{") and length <= 100_000_000, f"{path.name}: header")
    header = json.loads(text, object_pairs_hook=once)
    metadata = header.pop("__metadata__", {})
    check(all(isinstance(v, str) for v in metadata.values()), f"{path.name}: metadata {metadata}")
    out, at = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        count = int(numpy.prod(entry["shape"], dtype=numpy.uint64))
        check(begin == at and end - begin == count * SIZES[entry["dtype"]],
              f"{path.name}: {name} {entry} at {at}")
        out[name] = (entry["dtype"], entry["shape"], data[8 + length + begin:8 + length + end])
        at = end
    check(8 + length + at == len(data), f"{path.name}: {len(data)} bytes, named up to {at}")
    return out


def floats(dtype, data):
    if dtype == "BF16":
        return (numpy.frombuffer(data, "<u2").astype(numpy.uint32) << 16).view(numpy.float32)
    return numpy.frombuffer(data, {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]) \
        .astype(numpy.float32)


def value(state, tensor, count, step):
    """The rule of saver's values."""
    mixed = (numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(2654435761) +
             numpy.uint64(tensor * 97 + state * 31 + step)) >> numpy.uint64(7)
    return (mixed % numpy.uint64(255)).astype(numpy.float32) / numpy.float32(256) \
        - numpy.float32(0.5)


def by_package(path, own):
    """The package reads the same names and bytes as we do."""
    if safetensors is None:
        return
    with safetensors.safe_open(path, framework="numpy") as file:
        check(set(file.keys()) == set(own), f"{path.name}: the package sees other names")
        for name, (dtype, shape, data) in own.items():
            if dtype in ("F32", "F16", "U8"):
                array = file.get_tensor(name)
                check(array.tobytes() == data and list(array.shape) == shape,
                      f"{path.name}: {name} by the package")


def collect(folder, world):
    """{state/tensor: {first element: (count, values)}} of all ranks; pads are zero."""
    out = {}
    for rank in range(world):
        path = folder / f"rank-{rank}.safetensors"
        own = parse(path)
        by_package(path, own)
        for name, (dtype, shape, data) in own.items():
            if name.startswith("~pad/"):
                check(dtype == "U8" and not any(data), f"{path.name}: {name} is not zero")
                continue
            whole = name.rpartition("@") if "@" in name else (name, "", "0")
            out.setdefault(whole[0], {})[int(whole[2])] = floats(dtype, data)
    return out


def checkpoint(folder, world, dtype, stage, step):
    run = subprocess.run([SAVER, "save", folder, str(step), str(world), dtype, str(stage), "small"],
                         capture_output=True, text=True)
    check(run.returncode == 0, f"save: {run.stderr}")
    return pathlib.Path(run.stdout.strip())


def read_back(folder, world, dtype, stage, step):
    path = checkpoint(folder, world, dtype, stage, step)
    found = collect(path, world)
    states = STATES[1:] if dtype == "fp32" else STATES
    check(set(found) == {f"{s}/{t}" for s in states for t, _ in TENSORS},
          f"world {world} {dtype}: {sorted(found)[:8]}")
    for s in states:
        for t, (name, shape) in enumerate(TENSORS):
            pieces = found.get(f"{s}/{name}", {})
            count = int(numpy.prod(shape, dtype=numpy.uint64))
            at = 0
            for first in sorted(pieces):
                check(first == at, f"{s}/{name}: from {first}, not {at}")
                at += len(pieces[first])
            joined = numpy.concatenate([pieces[k] for k in sorted(pieces)]) if pieces else []
            check(at == count and (joined == value(STATES.index(s), t, count, step)).all(),
                  f"world {world} {dtype}: {s}/{name}")
    manifest = json.loads((path / "manifest.json").read_text())
    check(manifest["step"] == step and manifest["world"] == world and manifest["dtype"] == dtype,
          "manifest")
    check([t["name"] for l in manifest["layers"] for t in l["tensors"]] == [t for t, _ in TENSORS],
          "the manifest's tensors")
    return path


# ---- zeroctl ----

def ctl(*words, code=0):
    run = subprocess.run([ZEROCTL, "checkpoint", *map(str, words)], capture_output=True, text=True)
    check(run.returncode == code, f"{words}: exit {run.returncode}: {run.stdout}{run.stderr}")
    if code > 1:
        check(run.stderr.startswith("zeroctl"), f"{words}: {run.stderr}")
    return run.stdout or run.stderr


def commands(folder, path):
    listed = json.loads(ctl("list", folder, "--json"))
    check(all(e["complete"] for e in listed) and len(listed) == len(list(folder.iterdir())),
          f"list: {listed}")
    check("complete" in ctl("list", folder), "list")
    check("all" in ctl("verify", path), "verify")
    file = path / "rank-0.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    check("1 problem" in ctl("verify", path, code=1), "verify of a damaged one")
    found = json.loads(ctl("verify", path, "--json", code=1))
    check(found["problem_count"] == 1 and "rank-0.safetensors" in found["problems"][0], f"{found}")
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    before = sorted(os.listdir(folder))
    check("would remove step-1\n" in ctl("prune", folder, "--keep", "2", "--dry-run"), "dry run")
    check(sorted(os.listdir(folder)) == before, "a dry run removed something")
    ctl("prune", folder, "--keep", "2")
    check(len(os.listdir(folder)) == 2 and path.exists(), f"prune left {os.listdir(folder)}")
    ctl("prune", folder, code=2)
    ctl("list", folder / "nowhere", code=4)
    ctl("verify", folder / "nowhere", code=4)
    for words in (["verify", folder], ["export", folder, folder / "none"]):
        check(f"such as {path}\n" in ctl(*words, code=2), f"{words[0]} of a folder of them")
    for words in (("list",), ("list", "--json"), ("prune", "--keep", "1")):
        check(f"verify {path}\n" in ctl(*words, path, code=2), f"{words} of one of them")
    for lost in (file, path / "rank-0.json", path / "manifest.json"):
        lost.rename(folder / "lost")
        check(f"{lost.name} cannot be opened: No such file" in ctl("verify", path, code=1),
              f"verify without {lost.name}")
        check(json.loads(ctl("verify", path, "--json", code=1))["problem_count"] == 1, lost.name)
        (folder / "lost").rename(lost)
    ctl("nonsense", code=2)


def exports(folder, path, step):
    for dtype, short in (("fp32", "F32"), ("bf16", "BF16"), ("fp16", "F16")):
        out = folder / f"export-{dtype}"
        ctl("export", path, out, "--dtype", dtype)
        check(os.listdir(out) == ["model.safetensors"], f"export: {os.listdir(out)}")
        own = parse(out / "model.safetensors")
        by_package(out / "model.safetensors", own)
        for t, (name, shape) in enumerate(TENSORS):
            got = own[name]
            count = int(numpy.prod(shape, dtype=numpy.uint64))
            check(got[:2] == (short, shape), f"export {dtype} {name}: {got[:2]}")
            check((floats(*got[::2]) == value(1, t, count, step)).all(), f"export {dtype} {name}")
    out = folder / "export-parts"
    ctl("export", path, out, "--max-shard-size", "500KB")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    names = sorted(set(index["weight_map"].values()))
    check(names == [f"model-{i + 1:05}-of-{len(names):05}.safetensors" for i in range(len(names))],
          f"{names}")
    check(sorted(os.listdir(out)) == sorted(names + ["model.safetensors.index.json"]), "parts")
    for name in names:
        check(set(parse(out / name)) == {t for t, f in index["weight_map"].items() if f == name},
              f"{name}: other tensors than the index says")
    ctl("export", path, out, code=1)
    return out


def imports(folder, path, parts, step):
    ctl("import", parts, "--out", folder / "by-name")
    check("is no safetensors file" in ctl("import", __file__, "--out", folder / "text", code=1),
          "import of a text")
    ctl("import", folder / "export-fp32/model.safetensors", "--out", folder / "by-model", "--model",
        path)
    for made in ("by-name", "by-model"):
        check("all" in ctl("verify", folder / made / "step-0"), made)
        found = collect(folder / made / "step-0", 1)
        for t, (name, shape) in enumerate(TENSORS):
            count = int(numpy.prod(shape, dtype=numpy.uint64))
            check((found[f"master/{name}"][0] == value(1, t, count, step)).all(), f"{made} {name}")
    layers = [l["name"] for l in json.loads((folder / "by-model/step-0/manifest.json").read_text())
              ["layers"]]
    check(layers == ["first", "second", "last"], f"layers {layers}")
    ctl("import", parts, "--out", folder / "by-name", code=1)
    ctl("import", parts, code=2)
    ctl("import", folder / "nowhere", "--out", folder / "x", code=4)


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zero-files-"))
    saves = folder / "saves"
    try:
        step = 0
        for world in (1, 3, 8):
            for dtype in ("fp32", "bf16", "fp16"):
                step += 1
                path = read_back(saves, world, dtype, (0, 3)[step % 2], step)
        commands(saves, path)
        parts = exports(folder, path, step)
        imports(folder, path, parts, step)
    finally:
        shutil.rmtree(folder)
    print("read by our own parser" + (f" and by safetensors {safetensors.__version__}" if safetensors
                                      else "; Python has no safetensors package"), flush=True)
    print(f"{'failed' if failures else 'passed'}: {len(failures)} failures", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
