#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""What the holder kept is damaged, or another's: the daemon ends with exit code 78, says what is wrong
and what to go on from, and goes on from nothing else. Put right again, the group goes on as if nothing
had been. (tests/unit/test_journal.c flips every bit.)
"""
import fcntl
import mmap
import re
import struct

from harness import *
from holder import Holder
from trainers import Trainers

WORLD, STEPS = 2, 500
PAGE, EX_CONFIG = 4096, 78
STATES = re.compile(r'{"after":(\d+),"states":"(\w+)"}\n')
COMMAND = [PROBE, "--quiet", "--states", 1, "--layers", "a:3x1200,200;b:5", "--steps"]
SEALS = 0x2 | 0x4 | 0x1  # shrink, grow, seal

# journal.h
HEAD = {"magic": 0, "version": 8, "rank": 16, "world": 24, "model": 32, "checksum": 40, "newest": 48,
        "begun": 56, "done": 64, "trainer_pid": 72, "trainer_start": 80, "trainer_sum": 88,
        "origin_sum": 96, "origin": 104}
SAYS = {"magic": "this is no journal of zerod", "version": "start the version that wrote it",
        "rank": "its head does not check out", "world": "its head does not check out",
        "model": "its head does not check out", "checksum": "its head does not check out",
        "newest": "newest record", "begun": "that it names as begun", "done": "that it names as done",
        "trainer_pid": "its last trainer", "trainer_start": "its last trainer",
        "trainer_sum": "its last trainer", "origin_sum": "the checkpoint it began with",
        "origin": "the checkpoint it began with"}

# Of the older one the blob may be overwritten already: then neither is whole.
NEWEST = r"its newest record \d+ does not check out|neither of its two records checks out"


class Group:
    """Two daemons and their trainers; the daemons can be taken down and tried one at a time."""

    def __init__(self, settings, steps=STEPS):
        self.holder = Holder(WORLD)
        self.trainers = Trainers(self.holder, COMMAND + [steps], settings)
        self.trainers.look()
        until(lambda: min(map(self.trainers.said, range(WORLD))) > 5, what="first steps")

    def down(self):
        self.holder.restarts = False
        for rank in range(WORLD):
            self.trainers.kill(rank)
            self.holder.kill(rank)
        until(lambda: self.holder.processes == [None] * WORLD, what="daemons are down")
        check(max(map(self.trainers.said, range(WORLD))) < STEPS, "the run was over already")
        self.memory = mmap.mmap(self.holder.kept[0]["journal"], 0)
        self.right = bytes(self.memory)

    def refused(self, what, *texts):
        """Rank 0's daemon with what is kept of it now."""
        said, count = len(self.holder.text()), len(self.holder.codes)
        with self.holder.lock:
            self.holder.start(0)
        until(lambda: len(self.holder.codes) > count, what=f"{what}: the daemon ends")
        until(lambda: self.holder.processes[0] is None, what="it is seen")
        log = self.holder.text()[said:]
        check(self.holder.codes[-1] == EX_CONFIG, f"{what}: exit code {self.holder.codes[-1]}\n{log}")
        for text in texts:
            check(re.search(text, log), f"{what}: does not say '{text}':\n{log}")

    def damaged(self, what, at, *texts):
        self.memory[at] ^= 0x10
        self.refused(what, *texts)
        self.memory[:] = self.right

    def exchanged(self, what, fd, *texts):
        """Another fd in the journal's place; None: nothing is."""
        kept = self.holder.kept[0]
        before = kept.pop("journal")
        if fd is not None:
            kept["journal"] = fd
        self.refused(what, *texts)
        kept["journal"] = before

    def up(self):
        """To the end; what every rank read."""
        self.holder.restarts = True
        with self.holder.lock:
            for rank in range(WORLD):
                self.holder.start(rank)
        until(self.trainers.look, limit=LIMIT, what="trainers go on to the end")
        return [STATES.findall(self.trainers.text(rank)) for rank in range(WORLD)]

    def close(self):
        self.trainers.close()
        self.holder.close()


def copy_of(content, seals=SEALS):
    fd = os.memfd_create("zero-journal", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    os.fchmod(fd, 0o600)
    if seals:
        fcntl.fcntl(fd, 1033, seals)  # F_ADD_SEALS
    return fd


def damage(group, advice):
    for name, at in HEAD.items():
        group.damaged(name, at + (0 if name == "version" else 1), SAYS[name], advice)
    newest = PAGE * (1 + struct.unpack_from("<Q", group.right, HEAD["newest"])[0] % 2)
    older = 3 * PAGE - newest
    for field in (0, 1, 4, 5, 6, 12, 40):  # sequence, epoch, step, updates, ... of 8 bytes each
        group.damaged(f"newest record, field {field}", newest + 8 * field, NEWEST, advice)
    group.memory[older] ^= 1
    group.damaged("both records", newest + 8, "neither of its two records checks out", advice)


def exchange(group, other):
    content = group.right
    fds = {"shorter": copy_of(content[:-PAGE]), "longer": copy_of(content + bytes(PAGE)),
           "empty": copy_of(bytes(len(content))), "not sealed": copy_of(content, seals=0)}
    group.exchanged("shorter", fds["shorter"], f"has {len(content) - PAGE} bytes, not {len(content)}")
    group.exchanged("longer", fds["longer"], f"has {len(content) + PAGE} bytes, not {len(content)}")
    group.exchanged("empty", fds["empty"], "this is no journal of zerod")
    group.exchanged("not sealed", fds["not sealed"], "is not a sealed memfd")
    group.exchanged("missing", None, "the holder did not keep journal")
    group.exchanged("another rank's", group.holder.kept[1]["journal"],
                    "it belongs to rank 1 of 2, not to rank 0 of 2")
    group.exchanged("another config's", other.holder.kept[0]["journal"],
                    "it belongs to another model or config")
    for fd in fds.values():
        os.close(fd)


def saved_in(folder):
    """Whole checkpoints, the newest last."""
    found = [path for path in pathlib.Path(folder).iterdir() if re.fullmatch(r"step-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name[5:]))


def main():
    alone = Group(config(WORLD, stage=3))
    until(alone.trainers.look, limit=LIMIT, what="the run that is left alone")
    want = [STATES.findall(alone.trainers.text(rank)) for rank in range(WORLD)]
    alone.close()

    with tempfile.TemporaryDirectory(prefix="zt-") as folder:
        saves = {"checkpoint": {"dir": folder, "every_steps": 5}, "wait_timeout_seconds": 60}
        other = Group(config(WORLD, stage=3, zerod=saves), steps=10 ** 9)
        until(lambda: saved_in(folder), what="a checkpoint is there")
        other.down()
        group = Group(config(WORLD, stage=3))
        group.down()
        damage(group, "start the group anew, from a checkpoint with --restore")
        exchange(group, other)
        other.damaged("saved", HEAD["done"],
                      f"start the group anew; it goes on from {saved_in(folder)[-1]}\n")
        for rank, read in enumerate(group.up()):  # a trainer that was killed may not have said its last
            check(set(read) <= set(want[rank]) and read[-1] == want[rank][-1],
                  f"put right, rank {rank} does not go on as it was")
        group.close()
        other.close()
    done()


if __name__ == "__main__":
    main()
