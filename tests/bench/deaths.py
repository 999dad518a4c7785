# SPDX-License-Identifier: MIT
"""How long a group is without what died: a trainer's successor until its first gather, a daemon's until the
group has met again; and what readers of versions cost a training."""
import json
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time

STATE = 14  # bytes a parameter: bf16 weights, fp32 master and two moments


class Group:
    """Daemons that stay, and trainers that are started by hand."""

    def __init__(self, build, folder, world, params):
        settings = {"train_batch_size": world, "bf16": {"enabled": True},
                    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                    "zero_optimization": {"stage": 3, "reduce_bucket_size": 1000000}}
        self.build, self.world, self.params = build, world, params
        self.run, self.config, self.log = folder / "run", folder / "config.json", folder / "log"
        self.config.write_text(json.dumps(settings))
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [build / "deploy/zerorun", "-n", str(world), "--runtime-dir", self.run,
                 "--daemons-only", "--restart-delay", "0"], stdout=subprocess.DEVNULL, stderr=log)
        self.wait_for(lambda: (self.run / f"rank-{world - 1}.control").exists())

    def wait_for(self, fact):
        while not fact():
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text()[-2000:])
            time.sleep(0.001)

    def trainer(self, rank, *words):
        env = {**os.environ, "ZERO_CONFIG": str(self.config), "RANK": str(rank),
               "WORLD_SIZE": str(self.world), "ZERO_SOCKET": str(self.run / f"rank-{rank}.sock")}
        return subprocess.Popen([self.build / "tests/bench_step", "--params", str(self.params), *words],
                                env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                text=True)

    def status(self):
        run = subprocess.run([self.build / "client/ctl/zeroctl", "--runtime-dir", self.run, "status",
                              "--json"], capture_output=True, text=True)
        return json.loads(run.stdout)

    def close(self):
        self.process.terminate()
        self.process.wait()


def kill(process):
    process.kill()
    process.communicate()


def reattach(group):
    """Seconds from the start of a process to its first gather; its predecessor died in a step."""
    before = group.trainer(0, "--steps", "1000000", "--times")
    before.stdout.readline()
    kill(before)
    begun = time.monotonic_ns()
    trainer = group.trainer(0, "--first")
    first = int(trainer.stdout.readline().split()[1])
    kill(trainer)
    return (first - begun) / 1e9


def restart(group):
    """Seconds from the death of a daemon to its group's next epoch. It has touched all of its memory, which
    the kernel has to take out of it."""
    group.trainer(0, "--steps", "1").communicate()
    marked = len(group.log.read_text())
    begun = time.monotonic()
    os.kill(group.status()["ranks"][0]["pid"], signal.SIGKILL)
    group.wait_for(lambda: "joined epoch" in group.log.read_text()[marked:])
    return time.monotonic() - begun


def measure(build, options, row):
    for size in (10e6, 1e9) if options.quick else (10e6, 1e9, 8e9):
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            group = Group(build, pathlib.Path(folder).resolve(), 1, int(size / STATE))
            try:
                starts = [reattach(group) for _ in range(6)][1:]  # the first one fills
                where = f"{size / 1e9:g} GB of state, 1 rank"
                row("re-attach", where, statistics.median(starts) * 1e3, "ms", None, 100)
                row("re-attach, longest", where, max(starts) * 1e3, "ms", None, 100)
                restarts = [restart(group) for _ in range(5)]
                row("daemon restart", where, statistics.median(restarts) * 1e3, "ms", None, 1000)
                row("daemon restart, longest", where, max(restarts) * 1e3, "ms", None, 1000)
            finally:
                group.close()


BUSY = "import numpy, sys; a = numpy.ones(int(sys.argv[1]), numpy.float32); print(flush=True)\n" \
       "while True: a.sum()"


def rate(group, seconds):
    """Steps a second of trainers that do nothing else, over some seconds."""
    trainers = [group.trainer(rank, "--steps", "1000000", "--times") for rank in range(group.world)]
    for _ in range(3):
        trainers[0].stdout.readline()
    begun, count = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        trainers[0].stdout.readline()
        count += 1
    got = count / (time.monotonic() - begun)
    for trainer in trainers:
        kill(trainer)
    return got


def observer(build, options, row):
    """By turns: alone, beside somebody who reads the latest version in a loop, and beside a process that
    is as busy with memory of its own: what a core less costs."""
    for params in (1_000_000, 27_000_000):
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            folder = pathlib.Path(folder).resolve()
            group = Group(build, folder, 2, params)
            alone, watched, beside, seen = [], [], [], 0
            try:
                rate(group, 0.1)
                for _ in range(2 if options.quick else 5):
                    alone.append(rate(group, 3))
                    with open(folder / "seen", "w+") as out:
                        watcher = subprocess.Popen(
                            ["stdbuf", "-oL", build / "tests/watcher"], stdin=subprocess.PIPE, stdout=out, text=True,
                            env={**os.environ, "ZERO_SOCKET": str(group.run / "rank-1.sock")})
                        watcher.stdin.write("loop 1000000\n")
                        watcher.stdin.flush()
                        watched.append(rate(group, 3))
                        kill(watcher)
                    seen += (folder / "seen").read_text().count("\n")
                    busy = subprocess.Popen(["/usr/bin/python3", "-c", BUSY, str(params)],
                                            stdout=subprocess.PIPE, text=True)
                    busy.stdout.readline()
                    beside.append(rate(group, 3))
                    kill(busy)
            finally:
                group.close()
            times = [1e3 / statistics.median(rates) for rates in (alone, watched, beside)]
            row("step time, observed", f"{params / 1e6:g} M, {seen} versions read", times[1], "ms",
                times[0])
            row("step time, observed", f"{params / 1e6:g} M, beside other work", times[1], "ms",
                times[2])
