# SPDX-License-Identifier: MIT
"""What the integration tests share: groups started by zerorun, their output, and the probe's numbers.

ZERO_BUILD names the build folder. Every wait has a limit; nothing sleeps for a fixed time.
"""
import atexit
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import numpy

BUILD = pathlib.Path(os.environ.get("ZERO_BUILD", "build/test")).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]
ZERORUN = BUILD / "deploy" / "zerorun"
ZEROCTL = BUILD / "client" / "ctl" / "zeroctl"
GPT = BUILD / "client" / "examples" / "gpt"
PROBE = BUILD / "tests" / "probe"
LIMIT = float(os.environ.get("ZERO_TEST_LIMIT", "300"))

failures = []


def check(fact, text):
    if not fact:
        failures.append(text)
        print(f"FAIL {text}", flush=True)


def done():
    print(f"{'failed' if failures else 'passed'}: {len(failures)} failures", flush=True)
    sys.exit(1 if failures else 0)


def config(world, stage=3, dtype="fp32", accumulation=1, optimizer=None, **more):
    """A DeepSpeed config; micro batch 1."""
    optimizer = optimizer or {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}}
    out = {"train_batch_size": world * accumulation, "gradient_accumulation_steps": accumulation,
           "gradient_clipping": 0, "optimizer": optimizer,
           "zero_optimization": {"stage": stage}, "zerod": {"wait_timeout_seconds": 60}}
    if dtype != "fp32":
        out[dtype] = {"enabled": True}
    for key, value in more.items():
        if isinstance(value, dict) and key in out:
            out[key].update(value)
        else:
            out[key] = value
    return out


class Group:
    """zerorun with a trainer, to its end."""

    def __init__(self, world, trainer, settings=None, options=(), env=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
        self.runtime = self.folder / "run"
        arguments = [str(ZERORUN), "-n", str(world), "--runtime-dir", str(self.runtime)]
        if settings is not None:
            path = self.folder / "config.json"
            path.write_text(json.dumps(settings))
            arguments += ["--config", str(path)]
        arguments += [str(o) for o in options] + ["--"] + [str(a) for a in trainer]
        self.out = open(self.folder / "out", "w+")
        self.err = open(self.folder / "err", "w+")
        atexit.register(self.close)  # a test that fails in the middle leaves nothing running
        self.process = subprocess.Popen(arguments, stdout=self.out, stderr=self.err,
                                        stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})

    def wait(self, limit=LIMIT):
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(30)
            code = None
        return code

    def stdout(self):
        return (self.folder / "out").read_text()

    def stderr(self):
        return (self.folder / "err").read_text()

    def rank_lines(self, rank=0):
        """What the trainer of that rank wrote."""
        mark = f"[trainer {rank}] "
        return [line.split(mark, 1)[1] for line in self.stdout().splitlines() if mark in line]

    def rank_json(self, rank=0):
        return [json.loads(l) for l in self.rank_lines(rank) if l.startswith("{")]

    def close(self):
        atexit.unregister(self.close)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.out.close()
        self.err.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def until(fact, limit=60, what="condition"):
    """Polls until fact() is true; returns what it gave."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        value = fact()
        if value:
            return value
        time.sleep(0.02)
    raise TimeoutError(what)


def status(runtime):
    """zeroctl status --json, or None while there is nobody."""
    run = subprocess.run([str(ZEROCTL), "--runtime-dir", str(runtime), "status", "--json"],
                         capture_output=True, text=True, timeout=60)
    try:
        answer = json.loads(run.stdout)
    except json.JSONDecodeError:
        return None
    for rank in answer.get("ranks", []):
        named = re.search(r": rank (\d+) ", rank.get("waiting_for") or "")
        check(named is None or int(named[1]) < rank.get("world", 0), f"no such rank: {rank}")
    return answer


# ---- the probe's numbers, computed without zerod ---------------------------------------------------

M64 = (1 << 64) - 1


def mix(x):
    z = (numpy.asarray(x, dtype=numpy.uint64) + numpy.uint64(0x9E3779B97F4A7C15))
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def unit(u):
    return (u >> numpy.uint64(40)).astype(numpy.float32) / numpy.float32(8388608) - numpy.float32(1)


def shapes_of(spec):
    """[(layer index, shape)] of a probe layer spec."""
    out = []
    for layer, part in enumerate(spec.split(";")):
        for shape in part.split(":")[1].split(","):
            out.append((layer, [int(d) for d in shape.split("x")]))
    return out


def initial(spec, seed):
    with numpy.errstate(over="ignore"):
        return [unit(mix(mix(seed) + numpy.uint64(t << 40)
                         + numpy.arange(numpy.prod(shape), dtype=numpy.uint64))) * numpy.float32(0.1)
                for t, (_, shape) in enumerate(shapes_of(spec))]


def gradient(spec, seed, step, sample, tensor):
    count = int(numpy.prod(shapes_of(spec)[tensor][1]))
    base = (seed + (step << 40) + (sample << 24) + (tensor << 8)) & M64
    with numpy.errstate(over="ignore"):
        return unit(mix(mix(base) + numpy.arange(count, dtype=numpy.uint64)))


def read_dump(path, spec):
    """{state: [array of each tensor]} of a probe's --dump."""
    data = numpy.fromfile(path, dtype=numpy.float32)
    counts = [int(numpy.prod(shape)) for _, shape in shapes_of(spec)]
    out, at = {}, 0
    for state in ("master", "moment1", "moment2", "max_moment2", "param"):
        out[state] = []
        for count in counts:
            out[state].append(data[at:at + count])
            at += count
    return out
