#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Daemons that are told to end while a model is trained: no step is made that is not saved, whoever is
told, and whoever dies meanwhile.
"""
import re
import signal

from ending import *
from test_save import Idle

SLOW = {"call": "pwritev", "ms": 20}


def train(name, tell, code, faults=None, kill=None, options=()):
    """Trains without end, tells daemons to end, and finds the last step that was committed."""
    endless = [PROBE, "--layers", LARGE, "--steps", 1000000, "-q"]
    end = Ending(faults, trainer=endless, options=options)
    until(lambda: (status(end.group.runtime) or {"ranks": [{"step": 0}]})["ranks"][0].get("step", 0) > 2,
          what="steps")
    tell(end)
    if kill is not None:
        end.until_said("saving step")
        until(lambda: list(end.ck.glob("*.partial-*/*.safetensors")) or end.group.process.poll() is not None,
              what="a save")
        os.kill(end.pids()[kill], signal.SIGKILL)
    end.end()
    if tell is shut_down:
        check(end.asking.wait(LIMIT) == 0, f"{name}: zeroctl: {end.asking.returncode}")
    announced = re.findall(r"saving step (\d+) to", end.log)
    saved = re.findall(r"saved step (\d+): \S+/step-(\d+) ", end.log)
    check(end.code == code, f"{name}: exit {end.code}: {end.log}")
    check("was killed by signal 11" not in end.log and "signal 15 (" not in end.log, f"{name}: {end.log}")
    check(announced and len(saved) == 1 and [int(saved[0][0])] == end.saved and
          saved[0] == (announced[-1],) * 2, f"{name}: {announced}, {saved}, {end.saved}: {end.log}")
    check("not saved" not in end.log, f"{name}: {end.log}")


def shut_down(end):
    end.asking = subprocess.Popen([ZEROCTL, "--runtime-dir", end.group.runtime, "shutdown", "--yes"],
                                  stdout=subprocess.DEVNULL)


def one(rank):
    return lambda end: os.kill(end.pids()[rank], signal.SIGTERM)


def check_shutdown():
    for _ in range(3):
        train("zeroctl shutdown", shut_down, 75)
    train("slow", shut_down, 75, SLOW)


def check_deaths():
    for rank in 0, 1:
        train(f"zeroctl shutdown, rank {rank} dies", shut_down, 75, SLOW, kill=rank)


def check_one():
    for rank in 0, 1:
        for _ in range(2):
            train(f"rank {rank} alone", one(rank), 75)


def check_one_of_idle():
    """Without trainers, whom zerorun did not start."""
    for rank in 0, 1:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
        idle = Idle(text=settings(folder / "ck", 2))
        os.kill(status(idle.run)["ranks"][rank]["pid"], signal.SIGTERM)
        code = idle.process.wait(LIMIT)
        check(code == 0 and steps_in(folder / "ck") == [3], f"idle, rank {rank}: {code}: {idle.text()}")
        idle.close()
        shutil.rmtree(folder)


def main():
    for part in (check_shutdown, check_deaths, check_one, check_one_of_idle):
        begun = time.monotonic()
        part()
        print(f"{part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
    done()


if __name__ == "__main__":
    main()
