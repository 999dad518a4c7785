#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Trainers read all state after every step while daemons are killed: no call of theirs fails, but
that a step is to be repeated, and what every rank reads after every step is what it reads in a run
that was left alone.

ZERO_STEPS sets how long a run is; ZERO_SEED repeats a run's choices.
"""
import random
import re

from harness import *
from holder import Holder
from trainers import Trainers

STEPS = int(os.environ.get("ZERO_STEPS", "30"))
TIMES = 60  # that all is read after a step: longer than it takes to see that a daemon is gone
WORLD = 3
APART = 3  # steps from a kill to the next, in the mean
LAYERS = "a:64x33,70;b:3000;c:5"
STATES = re.compile(r'{"after":(\d+),"states":"(\w+)"}')


def run(settings, disturb=None):
    """What every rank read, [(step, sum)], and how many daemons died."""
    holder = Holder(WORLD)
    trainers = Trainers(holder, [PROBE, "--quiet", "--states", TIMES, "--steps", STEPS, "--layers", LAYERS],
                        settings)
    what = f"stage {settings['zero_optimization']['stage']}"
    end = time.monotonic() + LIMIT
    while not trainers.look() and not trainers.fails and time.monotonic() < end:
        if disturb:
            disturb(holder, trainers)
        else:
            time.sleep(0.02)
    trainers.close()
    check(not trainers.fails, f"{what}: a trainer failed: {trainers.fails}\n{holder.text()[-2000:]}")
    check(all(trainers.done), f"{what}: not done\n{holder.text()[-2000:]}")
    read = [STATES.findall(trainers.text(rank)) for rank in range(WORLD)]
    holder.close()
    return read, holder.deaths


class Killer:
    """Kills a daemon soon after a trainer has read: then the others are in their next step, or
    read."""

    def __init__(self, chance):
        self.chance, self.next = chance, 1

    def __call__(self, holder, trainers):
        rank = self.chance.randrange(WORLD)
        said = trainers.said(0)
        if said < self.next:
            time.sleep(0.001)
            return
        time.sleep(self.chance.uniform(0, 0.002))  # when, not how long to wait for something
        if holder.kill(rank):
            self.next = said + self.chance.randint(1, 2 * APART - 1)


def main():
    seed = int(os.environ.get("ZERO_SEED", random.SystemRandom().randrange(1 << 30)))
    chance = random.Random(seed)
    print(f"seed {seed}", flush=True)
    want, _ = run(config(WORLD, stage=0))
    check(all(len(read) == STEPS for read in want), f"alone: {[len(read) for read in want]} steps")
    for stage in range(4):
        read, deaths = run(config(WORLD, stage=stage), Killer(chance))
        print(f"stage {stage}: {deaths} daemons killed", flush=True)
        check(read == want, f"stage {stage}, seed {seed}: what was read differs first at "
                            f"{[next((w for r, w in zip(a, b) if r != w), None) for a, b in zip(read, want)]}")
        check(deaths >= STEPS // (4 * APART), f"stage {stage}: only {deaths} daemons were killed")
    done()


if __name__ == "__main__":
    main()
