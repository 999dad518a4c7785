# SPDX-License-Identifier: MIT
"""Runs a function in processes of its own, one a rank, beside daemons for them:

    values = run(train, 2, "adam")     # what train("adam") returned in rank 0 and in rank 1

The processes are forked from the test's, which has torch loaded already; so the test's own must
not have threads (set_num_threads(1), no autograd) before. A rank that raises makes run raise Failed
with its traceback.
"""
import atexit
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from harness import LIMIT, ZERORUN
import torch

torch.set_num_threads(1)


class Failed(Exception):
    """The text is the traceback of the first rank that failed."""


class Daemons:
    """`world` daemons without a model, in a folder of their own, until close()."""

    def __init__(self, world, *options):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
        self.runtime = self.folder / "run"
        self.log = open(self.folder / "log", "wb")
        self.process = subprocess.Popen(
            [str(ZERORUN), "-n", str(world), "--daemons-only", "--runtime-dir", str(self.runtime),
             *options], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        atexit.register(self.close)

    def said(self):
        return (self.folder / "log").read_text(errors="replace")

    def close(self):
        atexit.unregister(self.close)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _child(rank, world, runtime, out, function, args):
    """Never returns. The value, or the traceback, goes to the file."""
    code = 1
    try:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank),
                          LOCAL_WORLD_SIZE=str(world))
        if runtime:
            os.environ["ZERO_RUNTIME_DIR"] = str(runtime)
        try:
            answer = (True, function(*args))
        except BaseException:
            answer = (False, f"rank {rank}: {traceback.format_exc()}")
        sys.stdout.flush()
        out.write_bytes(pickle.dumps(answer))
        code = 0
    finally:
        os._exit(code)


def fork(function, world, *args, runtime=None, limit=LIMIT):
    """function(*args) in `world` processes; no daemons are started."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    sys.stdout.flush()
    children, failed = {}, None
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            _child(rank, world, runtime, folder / str(rank), function, args)
        children[pid] = rank
    values, end = [None] * world, time.monotonic() + limit
    while children:
        for pid, rank in list(children.items()):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
            del children[pid]
            path = folder / str(rank)
            fine, values[rank] = pickle.loads(path.read_bytes()) if path.exists() else (
                False, f"rank {rank} died")
            if not fine and failed is None:  # the others may wait for it
                failed, end = values[rank], min(end, time.monotonic() + 5)
        if time.monotonic() > end:
            failed = failed or f"ranks {sorted(children.values())}: not done in {limit:.0f} s"
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.005)
    shutil.rmtree(folder, ignore_errors=True)
    if failed is not None:
        raise Failed(failed)
    return values


def run(function, world, *args, limit=LIMIT):
    """function(*args) in `world` ranks of a group that is there for this call."""
    daemons = Daemons(world)
    try:
        return fork(function, world, *args, runtime=daemons.runtime, limit=limit)
    finally:
        daemons.close()
