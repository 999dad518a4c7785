#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""A group that ends saves its last step first, as long as that goes on; where it cannot be saved, it
says so, and its exit code does.
"""
import re
import signal

from ending import *
from test_save import SPEC


def check_undisturbed():
    end = Ending().end()
    check(end.code == 0 and end.good, f"exit {end.code}: {end.log}")
    check(re.search(rf"saving step 3 to {end.ck}\n(.*\n)*.*saved step 3: {end.ck}/step-3 \(0\.\d+ GB, "
                    r"\d+\.\d s\)\n", end.log), end.log)
    check("not saved" not in end.log and "signal 2" not in end.log, end.log)


def check_stopped():
    """Patience follows progress: who does not go on is named, and killed."""
    for rank in 0, 1:
        end = Ending({"call": "pwritev", "at": 3, "kind": "stop"}, rank, wait=3,
                     options=("--grace", 1)).end()
        for text in (f"waiting for rank {rank} to save step 3: ", " MB, and its daemon (pid ",
                     f"rank {rank} has not gone on for", "shows no sign of life",
                     f"zerod {rank} does not end: killing it"):
            check(text in end.log, f"rank {rank} stopped, no \"{text}\": {end.log}")
        check(end.lost(76), f"rank {rank} stopped: exit {end.code}: {end.log}")


def check_slow():
    """Who saves is not stuck, whatever the grace and however long it takes; who asks twice loses it."""
    slow = {"call": "pwritev", "ms": 500}
    end = Ending(slow, options=("--grace", 0), wait=2).end()
    check(end.code == 0 and end.good and "killing it" not in end.log, f"exit {end.code}: {end.log}")
    endless = [PROBE, "--layers", LARGE, "--steps", 1000000, "-q"]
    for trainer in (None, endless):
        end = Ending(slow, trainer=trainer)
        if trainer is not None:
            until(lambda: (status(end.group.runtime) or {"ranks": [{"step": 0}]})["ranks"][0].get(
                "step", 0) > 0, what="a step")
            end.signal(signal.SIGINT)
        end.until_said("saving step")
        if trainer is None:
            check("a second signal" not in end.group.stderr(), "warned of what nobody did")
            end.signal(signal.SIGINT)
        end.until_said("a second signal would lose it")
        end.signal(signal.SIGINT)
        end.end()
        check(end.code == 76 and end.saved == [] and
              re.search(r"the last step, \d+, was not saved in", end.log), f"exit {end.code}: {end.log}")


def check_group_killed():
    """The front knows that the last step is lost with the group's process, in a save and before."""
    for steps, said in ((1000000, "checkpoint"), (3, "saving step 3")):
        end = Ending({"call": "pwritev", "ms": 500}, trainer=[PROBE, "--layers", LARGE, "--steps", steps, "-q"])
        if said == "checkpoint":
            until(lambda: (status(end.group.runtime) or {"ranks": [{"step": 0}]})["ranks"][0].get(
                "step", 0) > 1, what="a step")
        else:
            end.until_said(said)
        front = end.group.process.pid
        os.kill(int(pathlib.Path(f"/proc/{front}/task/{front}/children").read_text().split()[0]), signal.SIGKILL)
        end.end()
        check(end.code == 76 and not end.good and "the last step was not saved" in end.log,
              f"{said}: exit {end.code}: {end.log}")


def check_errors():
    """A failure is said where it is, and again with the step that is lost; no promise of another try."""
    full = {"call": "pwritev", "at": 2, "kind": 28}
    for end, rank, reason in (
            (Ending(full, 1).end(), 1, "rank-1.safetensors .*No space left"),
            (Ending(full, 0).end(), 0, "rank-0.safetensors .*No space left"),
            (Ending({"call": "renameat2", "at": 1, "kind": 30}, 0).end(), 0, "Read-only file")):
        last = re.search(rf"the last step, 3, is not saved in {end.ck}: rank {rank}: .*{reason}", end.log)
        check(end.lost(76) and len(re.findall(reason, end.log)) == 2 and last and
              "is tried when" not in end.log, f"exit {end.code}: {end.log}")


def check_named():
    """What is written gets its name, and nobody is told that it is lost."""
    end = Ending({"call": "renameat2", "ms": 1000}, 0)
    until(lambda: list(end.ck.glob("*.partial-*/manifest.json")), what="it is to get its name")
    pid = end.pids()[0]
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pid, number)
    end.end()
    check(end.code == 0 and end.good and "not saved" not in end.log, f"exit {end.code}: {end.log}")


def main():
    for part in (check_undisturbed, check_stopped, check_slow, check_group_killed, check_errors,
                 check_named):
        begun = time.monotonic()
        part()
        print(f"{part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
    done()


if __name__ == "__main__":
    main()
