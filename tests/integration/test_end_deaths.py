#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Daemons that die while they save the last step are started again, and it is saved: whichever dies,
and at which call.
"""
import signal

from ending import *
from test_save import Idle


def check_deaths():
    """At calls of a save, of either daemon; then both at once."""
    for rank, call, at, kind in ((0, "mkdir", 2, "kill"), (0, "mkdir", 3, "killed"),
                                 (0, "pwritev", 1, "kill"), (1, "pwritev", 1, "kill"),
                                 (1, "pwritev", 20, "killed"), (1, "fsync", 1, "kill"),
                                 (0, "renameat", 1, "kill"), (0, "renameat2", 1, "kill"),
                                 (0, "renameat2", 1, "killed")):
        end = Ending({"call": call, "at": at, "kind": kind}, rank).end()
        what = f"rank {rank}, {kind} at {call} {at}"
        check(f"fault: {call}" in end.log and f"zerod {rank} was killed by signal 9" in end.log,
              f"{what} does not strike: {end.log}")
        check(end.code == 0 and end.good, f"{what}: exit {end.code}, {end.saved}: {end.log}")
        check(kind != "killed" or call != "renameat2" or "was whole already" in end.log,
              f"{what}: {end.log}")
    for ranks in ([0], [1], [0, 1]):
        end = Ending({"call": "pwritev", "ms": 30})
        until(lambda: list(end.ck.glob("*.partial-*/*.safetensors")), what="a save")
        pids = end.pids()
        for rank in ranks:
            os.kill(pids[rank], signal.SIGKILL)
        end.end()
        check(all(f"zerod {rank} was killed by signal 9" in end.log for rank in ranks) and
              end.code == 0 and end.good, f"{ranks} killed: exit {end.code}, {end.saved}: {end.log}")


def check_no_restart_left():
    faults = {"call": "pwritev", "at": 1, "kind": "kill"}
    end = Ending(faults, 1, always=True, options=("--max-daemon-restarts", 2)).end()
    check(end.lost(76) and "with no restart left" in end.log and
          end.log.count("zerod 1 was killed by signal 9") == 3, f"exit {end.code}: {end.log}")


def check_shutdown():
    """People who end the daemons (`zeroctl shutdown`), of which one dies."""
    for rank in 0, 1:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
        os.environ["ZEROD"] = str(wrapped(folder, {"call": "pwritev", "ms": 30}))
        idle = Idle(LARGE, text=settings(folder / "ck", 2))
        pids = {r["rank"]: r["pid"] for r in status(idle.run)["ranks"]}
        ending = subprocess.Popen([ZEROCTL, "--runtime-dir", idle.run, "shutdown", "--yes"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        until(lambda: list((folder / "ck").glob("*.partial-*/*.safetensors")), what="a save")
        os.kill(pids[rank], signal.SIGKILL)
        code, (said, _) = idle.process.wait(LIMIT), ending.communicate(timeout=LIMIT)
        check(code == 0 and steps_in(folder / "ck") == [3] and "was killed by" in idle.text(),
              f"rank {rank} killed in a shutdown: exit {code}: {said}{idle.text()}")
        idle.close()
        shutil.rmtree(folder)
    del os.environ["ZEROD"]


def main():
    for part in (check_deaths, check_no_restart_left, check_shutdown):
        begun = time.monotonic()
        part()
        print(f"{part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
    done()


if __name__ == "__main__":
    main()
