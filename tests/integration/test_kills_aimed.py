#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# Label: long
"""Daemons are killed at chosen instructions: while a chunk is saved, updated, counted; while a record is
written; between a decision and its publishing; while a successor makes good. All state after every
step is that of a run that was left alone, bit for bit.

ZERO_KILLS sets how many kills a run has (there are eight); ZERO_SEED repeats a run's choices.
"""
import collections
import contextlib
import random
import re
import signal
import traceback

import aim
from harness import *
from holder import Holder
from trainers import Trainers

KILLS = int(os.environ.get("ZERO_KILLS", "12"))
WORLD = 2
LAYERS = "a:3x1200,200;b:5"
FULL = 4  # chunks of a shard of the first layer, all of which have elements, whatever the type
STATES = re.compile(r'{"after":(\d+),"states":"(\w+)"}\n')
NEAR = 8         # instructions before an event
INSIDE = {"begun": 500, "done": 2500, "newest": 400}  # about as many are spent on it
PUBLISHES = 200  # about as many instructions from a recorded decision to its end


class Marksman:
    """Kills the daemons of a group, one after the other."""

    def __init__(self, run, chance, lengths):
        self.holder, self.trainers, self.chance = run.holder, run.trainers, chance
        self.lengths, self.layout = lengths, run.layout
        self.journals = [aim.Journal(run.holder.kept[r]["journal"]) for r in range(WORLD)]
        self.left = [None] * WORLD  # what an update's marks were when it died
        self.hits = collections.Counter()
        self.full = FULL * (WORLD if run.stage == 0 else 1)

    @contextlib.contextmanager
    def aimed(self, rank):
        """The daemon of that rank, which dies where it is left, and comes back."""
        traced = aim.Traced(self.holder.processes[rank].pid, 20)
        try:
            yield traced
        finally:
            traced.kill()
            self.holder.deaths += 1
        until(lambda: self.holder.processes[rank] and self.holder.processes[rank].pid != traced.pid,
              what=f"daemon {rank} is back")

    def near(self, traced, rank, key, word, place):
        """Goes to before, at, or after the instruction that changes a word of the journal. How far away
        it is is known once it was reached."""
        journal = self.journals[rank]
        old = journal.word(word)
        way = self.chance.choice(["before", "after", "inside", "inside"])
        if way == "before" and key in self.lengths:
            traced.step(max(0, self.lengths[key] - self.chance.randint(1, NEAR)))
        elif way == "inside":
            traced.step(self.chance.randrange(self.lengths.get(key, INSIDE[word])))
        else:
            self.lengths[key] = traced.step_until(lambda: journal.word(word) != old)
            traced.step(self.chance.randrange(4))
        self.hits[f"{place}, {word} {'not ' if journal.word(word) == old else ''}written"] += 1

    def words(self, rank):
        return self.journals[rank].word("begun"), self.journals[rank].word("done")

    def is_open(self, rank):
        """Some other shot hit it in the middle of an update."""
        begun, done = self.journals[rank].chunk("begun"), self.journals[rank].chunk("done")
        return begun + 1 != done or done < self.full

    def in_chunk(self, rank):
        """Before `begun` names a chunk, or before `done` counts it."""
        journal = self.journals[rank]
        with self.aimed(rank) as traced:
            traced.run_to("update_apply")
            goes_on = self.words(rank) == self.left[rank] or self.is_open(rank)
            self.into_chunk(traced, rank, journal.chunk("done") if goes_on else 0, goes_on)
            self.left[rank] = self.words(rank)

    def into_chunk(self, traced, rank, first, goes_on):
        journal, begun = self.journals[rank], self.journals[rank].word("begun")
        place = "update that goes on" if goes_on else "update"
        if first >= self.full:  # it died between the last chunk and its record, or in padding
            traced.step(self.chance.randrange(NEAR))
            self.hits[f"{place}, little left"] += 1
            return
        most = self.chance.randint(first + 1, self.full)  # the later, the longer it takes
        target = self.chance.randrange(first, most)
        in_flight = goes_on and target == first and journal.chunk("begun") == first
        word = "done" if in_flight else self.chance.choice(["begun", "done", "done"])
        if word == "begun" and target > first:
            traced.step_until(lambda: journal.chunk("done") == target)
        elif word == "done" and not in_flight:
            traced.step_until(lambda: journal.word("begun") != begun and journal.chunk("begun") == target)
        self.near(traced, rank, (self.layout, rank, target, word, target == first, in_flight), word, place)

    def in_redo(self, rank):
        """A successor, while it makes the step of its predecessor."""
        self.in_chunk(rank)
        self.in_chunk(rank)

    def in_record(self, rank):
        function = self.chance.choice(["keep_prepared", "keep_decision", "keep_applied"])
        with self.aimed(rank) as traced:
            traced.run_to(function)
            self.near(traced, rank, function, "newest", function)

    def in_meeting(self, rank):
        """The one that is left, when it writes that it has met the other's successor."""
        with self.aimed(rank) as traced:
            self.holder.kill(1 - rank)
            traced.run_to("keep_joined")
            self.near(traced, rank, "keep_joined", "newest", "keep_joined")

    def after_record(self, rank):
        """Rank 0 has decided and nobody knows; a rank has updated and not told."""
        function = self.chance.choice(["keep_decision", "keep_applied"])
        journal = self.journals[rank]
        with self.aimed(rank) as traced:
            traced.run_to(function)
            old = journal.word("newest")
            traced.step_until(lambda: journal.word("newest") != old)
            traced.step(self.chance.randrange(PUBLISHES))
            self.hits[f"after {function}"] += 1

    def shoot(self, kind):
        rank = self.chance.randrange(WORLD)
        said = self.trainers.said(rank)
        getattr(self, kind)(rank)
        if self.chance.random() < 0.8:  # else the next one meets a group that is not together yet
            until(lambda: self.trainers.said(rank) > said, what=f"a step after {kind} of rank {rank}")


KINDS = ["in_chunk", "in_redo", "in_record", "after_record", "in_chunk", "in_meeting"]


def settings_of(dtype, stage):
    """With all four states, and with three and parameters of 16 bits."""
    optimizer = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1, "amsgrad": dtype == "fp32"}}
    return config(WORLD, stage=stage, dtype=dtype, optimizer=optimizer, gradient_clipping=1.0)


class Run:
    """A group whose trainers say what all state is after every step."""

    def __init__(self, dtype, stage, steps):
        self.stage, self.layout = stage, (dtype, stage == 0)  # on which the instructions of an update depend
        self.holder = Holder(WORLD)
        self.trainers = Trainers(self.holder, [PROBE, "--quiet", "--states", 1, "--steps", steps,
                                               "--layers", LAYERS, "--inject", "3:1:nan"],
                                 settings_of(dtype, stage))
        self.trainers.look()

    def close(self):
        """[(step, sum)] of each rank."""
        self.trainers.look()
        self.trainers.close()
        read = [STATES.findall(self.trainers.text(rank)) for rank in range(WORLD)]
        self.holder.close()
        return read


def shot(dtype, stage, chance, lengths):
    """What each rank's state was, and where daemons died."""
    run = Run(dtype, stage, 10 ** 9)
    until(lambda: all(run.trainers.said(rank) > 4 for rank in range(WORLD)), what="first steps")
    marksman = Marksman(run, chance, lengths)
    try:
        for n in range(KILLS):
            marksman.shoot(KINDS[n % len(KINDS)])
        until(lambda: min(map(run.trainers.said, range(WORLD))) >= max(marksman.trainers.lines),
              what="all ranks at a step")
    except (TimeoutError, RuntimeError, OSError) as error:
        where = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)]
        words = [(journal.word("begun"), journal.word("done")) for journal in marksman.journals]
        check(False, f"{dtype} stage {stage}: {error}, lines {where}, words {words}, left "
              f"{marksman.left}\n{run.holder.text()[-2000:]}")
    run.trainers.look()
    check(not run.trainers.fails, f"{dtype} stage {stage}: trainers failed: {run.trainers.fails}")
    check(set(run.holder.codes) <= {-signal.SIGKILL}, f"{dtype} stage {stage}: a daemon ended: "
          f"{run.holder.codes}\n{run.holder.text()[-2000:]}")
    return run.close(), marksman.hits


def alone(dtype, steps):
    run = Run(dtype, 0, steps)
    until(run.trainers.look, limit=LIMIT, what="the run that is left alone")
    return run.close()


def main():
    reason = aim.why_not()
    if reason:
        print(f"skipped: {reason}", file=sys.stderr)
        sys.exit(77)
    seed = int(os.environ.get("ZERO_SEED", random.SystemRandom().randrange(1 << 30)))
    chance = random.Random(seed)
    print(f"seed {seed}", flush=True)
    total, lengths = collections.Counter(), {}  # lengths: instructions to an event, once it was seen
    for dtype in ("fp32", "bf16"):
        reads = []
        for stage in range(4):
            read, hits = shot(dtype, stage, chance, lengths)
            reads.append(read)
            total += hits
            print(f"{dtype} stage {stage}: {sum(hits.values())} kills, "
                  f"{min(map(len, read))} steps", flush=True)
        want = alone(dtype, max(len(steps) for read in reads for steps in read))
        for stage, read in enumerate(reads):
            for rank, steps in enumerate(read):
                wrong = next((have for have, wanted in zip(steps, want[rank]) if have != wanted), None)
                check(wrong is None and len(steps) > 4,
                      f"{dtype} stage {stage} rank {rank}, seed {seed}: first differs at {wrong}")
    for place in sorted(total):
        print(f"{total[place]:5} {place}")
    print(f"{sum(total.values())} kills")
    done()


if __name__ == "__main__":
    main()
