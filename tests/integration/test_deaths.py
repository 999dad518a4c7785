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
from trainers import Trainers

PAUSE = float(os.environ.get("ZERO_PAUSE", "0.06"))
STEPS = int(os.environ.get("ZERO_STEPS", "300"))
LAST = re.compile(r"weights sha256=(\w+) step=(\d+)")
BOOK = SOURCE / "tests" / "data" / "devils-dictionary.txt"


def run(world, settings, steps, disturb=None):
    holder = Holder(world)
    trainers = Trainers(holder, [GPT, "--text", BOOK, "--steps", steps, "--width", 16, "--heads", 2,
                                 "--seq", 16], settings)
    end = time.monotonic() + LIMIT
    while not trainers.look() and time.monotonic() < end:
        if disturb:
            disturb(holder, trainers)
        else:
            time.sleep(0.02)
    what = f"world {world} {settings}"
    check(all(trainers.done), f"{what}: not done\n{trainers.fails[-3:]}\n{holder.text()[-3000:]}")
    trainers.close()
    found = [last.groups() for last in map(LAST.search, map(trainers.text, range(world))) if last]
    result = found[-1] if found else None, holder.deaths, trainers.deaths, trainers.fails, holder.text()
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
