#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Daemons and trainers are killed at random, alone and together, and the final weights are those of a
run that was left alone.

ZERO_STEPS sets how long a run is, ZERO_PAUSE the mean seconds between two kills; ZERO_SEED repeats a
run's choices.
"""
import random
import re
import signal

from harness import *
from holder import Holder

PAUSE = float(os.environ.get("ZERO_PAUSE", "0.06"))
STEPS = int(os.environ.get("ZERO_STEPS", "300"))
LAST = re.compile(r"weights sha256=(\w+) step=(\d+)")
BOOK = SOURCE / "tests" / "data" / "devils-dictionary.txt"


class Trainers:
    """One gpt a rank, started again when it fails."""

    def __init__(self, holder, steps, settings):
        self.holder, self.folder = holder, holder.folder
        self.command = [str(GPT), "--text", str(BOOK), "--steps", str(steps), "--width", "16",
                        "--heads", "2", "--seq", "16"]
        self.settings = self.folder / "config.json"
        self.settings.write_text(json.dumps(settings))
        self.processes = [None] * holder.world
        self.done = [False] * holder.world
        self.last, self.deaths, self.starts = None, 0, 0
        self.fails = []

    def start(self, rank):
        env = {**os.environ, "ZERO_SOCKET": self.holder.socket_of(rank), "RANK": str(rank),
               "WORLD_SIZE": str(self.holder.world), "ZERO_CONFIG": str(self.settings),
               "OMP_NUM_THREADS": "1"}
        self.starts += 1
        self.processes[rank] = subprocess.Popen(self.command, env=env, text=True,
                                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                                stderr=subprocess.PIPE)

    def look(self):
        """Starts what is not there, collects what ended; true when all are done."""
        for rank, process in enumerate(self.processes):
            if self.done[rank]:
                continue
            if process is None:
                self.start(rank)
            elif process.poll() is not None:
                out, err = process.communicate()
                self.processes[rank] = None
                if process.returncode == 0:
                    self.done[rank] = True
                    found = LAST.search(out)
                    self.last = found.groups() if found else self.last
                elif process.returncode > 0:
                    self.fails.append(err[-300:])
        return all(self.done)

    def kill(self, rank):
        process = self.processes[rank]
        if process is None or process.poll() is not None:
            return
        process.kill()
        self.deaths += 1

    def close(self):
        for process in self.processes:
            if process:
                process.kill()
                process.communicate()


def run(world, settings, steps, disturb=None):
    holder = Holder(world)
    trainers = Trainers(holder, steps, settings)
    end = time.monotonic() + LIMIT
    while not trainers.look() and time.monotonic() < end:
        if disturb:
            disturb(holder, trainers)
        else:
            time.sleep(0.02)
    what = f"world {world} {settings}"
    check(all(trainers.done), f"{what}: not done\n{trainers.fails[-3:]}\n{holder.text()[-3000:]}")
    trainers.close()
    result = trainers.last, holder.deaths, trainers.deaths, trainers.fails, holder.text()
    holder.close()
    return result


class Killer:

    def __init__(self, chance, world):
        self.chance, self.world = chance, world

    def __call__(self, holder, trainers):
        time.sleep(self.chance.expovariate(1 / PAUSE))  # when, not how long to wait for something
        kind = self.chance.random()
        rank = self.chance.randrange(self.world)
        if kind < 0.4:
            holder.kill(rank)
        elif kind < 0.8:
            trainers.kill(rank)
        elif kind < 0.9:  # two daemons at once
            holder.kill(rank)
            holder.kill((rank + 1) % self.world)
        else:  # one in the middle of recovery
            holder.kill(rank)
            time.sleep(self.chance.uniform(0, 0.02))
            holder.kill(rank)


def main():
    seed = int(os.environ.get("ZERO_SEED", random.SystemRandom().randrange(1 << 30)))
    chance = random.Random(seed)
    print(f"seed {seed}", flush=True)
    world, total = 4, 0
    for dtype in ("fp32", "bf16"):
        want = None
        for stage in range(4):
            settings = config(world, stage=stage, dtype=dtype)
            if want is None:
                want = run(world, settings, STEPS)[0]
            got, daemons, trainers, fails, log = run(world, settings, STEPS, Killer(chance, world))
            print(f"{dtype} stage {stage}: {daemons} daemons and {trainers} trainers killed, "
                  f"{len(fails)} trainers failed by themselves: {got}", flush=True)
            total += daemons
            check(got == want, f"{dtype} stage {stage}, seed {seed}: {got}, not {want}")
            check(not fails, f"{dtype} stage {stage}: trainers failed: {fails[:3]}\n{log[-2000:]}")
    check(total >= 20, f"only {total} daemons were killed")
    done()


if __name__ == "__main__":
    main()
