#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Trainers are killed at random, many times in one run, and the final weights are those of a run that
was left alone.

ZERO_KILLS sets how many (default 100); ZERO_SEED prints and repeats a run.
"""
import random
import re
import signal
import time

from harness import *

KILLS = int(os.environ.get("ZERO_KILLS", "100"))
STEPS = int(os.environ.get("ZERO_STEPS", "200"))


def last_line(group):
    lines = [l for l in group.rank_lines(0) if l.startswith("weights sha256=")]
    return lines[-1] if lines else None


def trainer_pids(runtime):
    """{rank: pid} of trainers that daemons know."""
    answer = status(runtime)
    if answer is None:
        return {}
    return {r["rank"]: r["trainer_pid"] for r in answer["ranks"] if r.get("trainer_pid")}


def children_of(pid):
    """All descendants, from /proc."""
    found, todo = [], [pid]
    while todo:
        try:
            for task in os.listdir(f"/proc/{todo[0]}/task"):
                text = pathlib.Path(f"/proc/{todo[0]}/task/{task}/children").read_text()
                todo += [int(c) for c in text.split()]
        except OSError:
            pass
        found.append(todo.pop(0))
    return found[1:]


def trainers(group):
    out = []
    for pid in children_of(group.process.pid):
        try:
            if os.readlink(f"/proc/{pid}/exe") == str(GPT):
                out.append(pid)
        except OSError:
            pass
    return out


def undisturbed(world, steps):
    group = Group(world, [GPT, "--steps", steps])
    code = group.wait()
    check(code == 0, f"undisturbed run: exit {code}\n{group.stderr()[-800:]}")
    line = last_line(group)
    group.close()
    return line


def killed(world, steps, kills, seed):
    """One run; returns its last line and the kills that hit."""
    chance = random.Random(seed)
    group = Group(world, [GPT, "--steps", steps], options=["--max-restarts", 100000,
                                                              "--restart-delay", 0])
    hits = 0
    end = time.monotonic() + LIMIT
    while group.process.poll() is None and time.monotonic() < end:
        if hits < kills:
            time.sleep(chance.expovariate(1 / 0.08))  # when, not how long to wait for something
            victims = trainers(group)
            if victims:
                try:
                    os.kill(chance.choice(victims), signal.SIGKILL)
                    hits += 1
                except ProcessLookupError:
                    pass
        else:
            time.sleep(0.05)
    code = group.wait(5)
    line = last_line(group)
    check(code == 0, f"killed run, seed {seed}: exit {code}\n{group.stderr()[-1500:]}")
    group.close()
    return line, hits


def main():
    seed = int(os.environ.get("ZERO_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"seed {seed}: {KILLS} kills, {STEPS} steps", flush=True)
    want = undisturbed(2, STEPS)
    if failures:
        done()
    have, hits = killed(2, STEPS, KILLS, seed)
    print(f"{hits} kills\n  undisturbed {want}\n  killed      {have}")
    pick = re.compile(r"weights sha256=(\w+) step=(\d+)")
    check(want and have and pick.match(want).groups() == pick.match(have).groups(),
          f"seed {seed}: the hashes differ")
    check(hits >= min(KILLS, 10), f"only {hits} kills hit")
    done()


if __name__ == "__main__":
    main()
