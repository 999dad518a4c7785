# SPDX-License-Identifier: MIT
"""A checkpoint of a group that trains: how long training stops for it, how fast it gets to the disk, and
what memory it takes; beside a copy of the same bytes, fio, and what PyTorch does with the same state."""
import ctypes
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import time

WORLD = 2
STATE = 14  # bytes a parameter: bf16 weights, fp32 master and two moments

# Each process has half of the state, of which the master's bytes are random.
TORCH = """
import json, os, sys, time
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
rank, folder, params = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + folder + "/meet", rank=rank, world_size=2)
state = {f"{kind}.{rank}": torch.empty(params, dtype=torch.bfloat16 if kind == "param" else torch.float32)
         for kind in ("param", "master", "moment1", "moment2")}
for tensor in state.values():
    tensor.normal_()
def together():
    dist.barrier()
    return time.perf_counter()
def fsync(path):
    fd = os.open(path, os.O_RDONLY); os.fsync(fd); os.close(fd)
out = {}
begun = together()
torch.save(state, f"{folder}/save-{rank}"); fsync(f"{folder}/save-{rank}")
out["save_stall"] = out["save_total"] = together() - begun
os.remove(f"{folder}/save-{rank}")
begun = together()
future = dcp.async_save(state, checkpoint_id=folder + "/dcp")
out["async_stall"] = time.perf_counter() - begun
future.result()
out["async_total"] = together() - begun
if rank == 0:
    print(json.dumps(out))
dist.barrier()
dist.destroy_process_group()
"""


def copy_seconds(size):
    """To copy that many bytes on each of two cores at once, into memory that is there."""
    best = 1e9
    buffers = [(ctypes.create_string_buffer(size), ctypes.create_string_buffer(size))
               for _ in range(WORLD)]
    for pair in buffers:
        for buffer in pair:
            ctypes.memset(buffer, 1, size)
    for _ in range(3):
        threads = [threading.Thread(target=ctypes.memmove, args=(*pair, size)) for pair in buffers]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - begun)
    return best


class Training:
    """A group that trains until it is closed."""

    def __init__(self, build, params, folder):
        settings = {"train_batch_size": WORLD, "bf16": {"enabled": True},
                    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                    "zero_optimization": {"stage": 3}}
        (folder / "config.json").write_text(json.dumps(settings))
        self.build, self.run, self.log = build, folder / "run", folder / "log"
        self.times = []
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [build / "deploy/zerorun", "-n", str(WORLD), "--config", folder / "config.json",
                 "--runtime-dir", self.run, "--no-prefix", "--", build / "tests/bench_step", "--params",
                 str(params), "--steps", "1000000", "--times"], stdout=subprocess.PIPE, stderr=log,
                text=True)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            if line.startswith("step "):
                self.times.append((time.monotonic(), float(line.split()[2])))

    def wait_steps(self, count):
        want = len(self.times) + count
        while len(self.times) < want:
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text()[-2000:])
            time.sleep(0.01)

    def ctl(self, *words):
        return subprocess.run([self.build / "client/ctl/zeroctl", "--runtime-dir", self.run, *words],
                              check=True, capture_output=True, text=True).stdout

    def private_bytes(self):
        """Anonymous memory of all daemons."""
        total = 0
        for rank in json.loads(self.ctl("status", "--json"))["ranks"]:
            status = pathlib.Path(f"/proc/{rank['pid']}/status").read_text()
            total += int(re.search(r"RssAnon:\s+(\d+)", status).group(1)) * 1024
        return total

    def close(self):
        self.process.terminate()
        self.process.wait()


def save_once(training, folder):
    """Seconds of the copy, the longest step's excess, seconds of the writing, peak extra bytes."""
    usual = sorted(t for _, t in training.times[-6:])[3]
    before, peak = training.private_bytes(), 0
    marked, begun = len(training.log.read_text()), time.monotonic()
    saving = subprocess.Popen([training.build / "client/ctl/zeroctl", "--runtime-dir", training.run,
                               "checkpoint", "save", folder / "saved"], stdout=subprocess.PIPE, text=True)
    while saving.poll() is None:
        peak = max(peak, training.private_bytes())
        time.sleep(0.02)
    if saving.returncode != 0:
        raise RuntimeError(training.log.read_text()[-2000:])
    training.wait_steps(1)
    log = training.log.read_text()[marked:]
    copied = float(re.search(r"training waited ([\d.]+) s", log).group(1))
    writes = [(int(b), float(s)) for b, s in re.findall(r"wrote (\d+) bytes in ([\d.]+) s", log)]
    longest = max(t for when, t in training.times if when > begun)
    shutil.rmtree(folder / "saved")
    return {"copy": copied, "excess": longest - usual, "usual": usual, "extra": peak - before,
            "bytes": sum(b for b, _ in writes), "write": max(s for _, s in writes)}


def by_torch(python, params, folder):
    script = folder / "by_torch.py"
    script.write_text(TORCH)
    both = [subprocess.Popen([python, script, str(rank), folder, str(params // WORLD)], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(WORLD)]
    ends = [process.communicate() for process in both]
    if any(process.returncode for process in both):
        raise RuntimeError(ends[0][1][-2000:] + ends[1][1][-2000:])
    return json.loads(ends[0][0].splitlines()[-1])


def measure(build, options, row, fio):
    params = 36_000_000 if options.quick else 288_000_000
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        folder = pathlib.Path(folder).resolve()
        training, got, floors = Training(build, params, folder), [], []
        try:
            training.wait_steps(8)
            for _ in range(3):
                got.append(save_once(training, folder))
                training.wait_steps(3)
        finally:
            training.close()
        size = got[0]["bytes"]
        floors = [fio(folder, size) for _ in range(3)]
        where = f"{size / 1e9:.1f} GB, 2 ranks, stage 3"
        copy = copy_seconds(size // WORLD)
        row("checkpoint stall", where + ", the copy", min(g["copy"] for g in got), "s", copy)
        row("checkpoint stall", where + ", longest step's", min(g["excess"] for g in got), "s", copy)
        floor = None if floors[0] is None else min(floors)
        row("checkpoint in training", where + ", beside fio",
            min(g["write"] for g in got) / (size / 1e9), "s/GB", floor, floor / 0.9 if floor else None)
        row("checkpoint memory", where + ", extra", max(g["extra"] for g in got) / 1e9, "GB",
            size / 1e9)
        if options.torch:
            theirs = by_torch(options.torch, params, folder)
            row("torch.save stall", where, theirs["save_stall"], "s", copy)
            row("DCP async_save stall", where, theirs["async_stall"], "s", copy)
            row("torch.save", where, theirs["save_total"] / (size / 1e9), "s/GB", floor)
            row("DCP async_save", where, theirs["async_total"] / (size / 1e9), "s/GB", floor)
