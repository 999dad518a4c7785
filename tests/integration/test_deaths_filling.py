#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Daemons and trainers die while initial values are given, at instants that are chosen: nobody whose
values the group has is refused for giving them again, and the weights after some steps are those of a
group that was left alone.
"""
import contextlib
import pathlib
import signal

from harness import *
from holder import Holder
from trainers import Trainers

LAYERS = "a:33x7,50;b:1000"
STEPS = 3


def is_stopped(pid):
    """Every thread of it."""
    tasks = pathlib.Path("/proc").glob(f"{pid}/task/*/stat")
    return {task.read_text().rsplit(")", 1)[1].split()[0] for task in tasks} == {"T"}


class Filling:
    """A group whose trainers stop before they fill and before they end it, each until told."""

    def __init__(self, *more):
        self.holder = Holder(2)
        self.trainers = Trainers(self.holder, [PROBE, "--quiet", "--fill-stops", "--sums", "--steps", STEPS,
                                               "--layers", LAYERS, *more], config(2, stage=2))
        self.trainers.look()

    def stopped(self, *ranks):
        """Waits until these trainers are at their next stop."""
        for rank in ranks:
            until(lambda: is_stopped(self.trainers.processes[rank].pid), what=f"trainer {rank} stops")

    def go(self, *ranks):
        for rank in ranks:
            self.trainers.processes[rank].send_signal(signal.SIGCONT)

    def gave(self, *ranks):
        """Trainers that have only to end."""
        self.stopped(*ranks)
        self.go(*ranks)
        self.stopped(*ranks)

    def ends(self, rank, text):
        """Lets a trainer end; waits until its daemon waits for that, having done all it can itself."""
        self.go(rank)
        until(lambda: text in self.waiting(rank), what=f"rank {rank} waits for: {text}")

    def waiting(self, rank):
        answer = status(self.holder.runtime)
        return (answer["ranks"][rank].get("waiting_for") if answer else None) or ""

    def stop_daemon(self, rank):
        daemon = self.holder.processes[rank]
        daemon.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(daemon.pid), what=f"daemon {rank} stops")

    def said(self, rank, text):
        until(lambda: f"zerod[{rank}] {text}" in self.holder.text(), what=f"rank {rank} says: {text}")

    def end(self, what):
        """No trainer stops any more; what each rank read after every step."""
        def over():
            for process in self.trainers.processes:
                if process and process.poll() is None and is_stopped(process.pid):
                    process.send_signal(signal.SIGCONT)
            return self.trainers.look() or self.trainers.fails
        until(over, what=f"the end of: {what}")
        check(not self.trainers.fails, f"{what}: {self.trainers.fails}\n{self.holder.text()[-3000:]}")
        return {self.trainers.text(rank) for rank in range(self.holder.world)}

    def close(self):
        self.trainers.close()
        self.holder.close()


def alone(group):
    pass


def answer_is_lost(group):
    """Rank 0 knows that all values are in, rank 1's daemon dies before it says so."""
    group.gave(0, 1)
    group.ends(0, "rank 1 (trainer pid")
    group.stop_daemon(0)
    group.ends(1, "rank 0")
    group.stop_daemon(1)
    group.holder.processes[0].send_signal(signal.SIGCONT)
    group.said(0, "initial values are in")
    check("zerod[1] initial values are in" not in group.holder.text(), "rank 1 was to be stopped before")
    group.holder.kill(1)


def values_are_lost(group):
    """Rank 0 has ended, the others have given all, and a daemon dies."""
    group.gave(0, 1)
    group.ends(0, "rank 1 (trainer pid")
    group.holder.kill(0)
    group.said(0, "joined epoch 2")


def trainer_is_lost(group):
    """A trainer that had ended dies; its successor attaches before all values are in, and fills after."""
    group.gave(0, 1)
    group.ends(0, "rank 1 (trainer pid")
    group.trainers.kill(0)
    until(lambda: group.trainers.look() or group.trainers.starts == 3, what="a successor")
    group.stopped(0)
    group.go(1)
    for rank in range(2):
        group.said(rank, "initial values are in")
    group.go(0)


def main():
    want = None
    for options in (), ("--fill-rank-0",):
        for case in alone, answer_is_lost, values_are_lost, trainer_is_lost:
            what = f"{case.__name__} {' '.join(options)}"
            with contextlib.closing(Filling(*options)) as group:
                case(group)
                got = group.end(what)
            want = want or got
            check(got == want and len(got) == 1 and list(got)[0].count("sum") == STEPS,
                  f"{what}: {got}, not {want}")
    done()


if __name__ == "__main__":
    main()
