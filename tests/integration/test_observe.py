#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""An observer sees whole steps, and training goes on whatever it does."""
import signal

from harness import *

WATCHER = BUILD / "tests" / "watcher"
SPEC = "a:300x300,300;b:200x500;c:17"


def watch(group, *arguments, rank=0):
    run = subprocess.run([str(WATCHER), *map(str, arguments)], capture_output=True, text=True,
                         timeout=LIMIT,
                         env={**os.environ, "ZERO_SOCKET": str(group.runtime / f"rank-{rank}.sock")})
    check(run.returncode == 0, f"watcher {arguments}: exit {run.returncode} {run.stderr}")
    return json.loads(run.stdout) if run.returncode == 0 else None


def steps_of(group):
    lines = group.rank_json()
    return lines[-1]["step"] if lines else 0


def main():
    for stage, dtype in ((3, "fp32"), (1, "bf16"), (0, "fp32")):
        settings = config(2, stage=stage, dtype=dtype)
        settings["zerod"]["observer_hold_ms"] = 400
        group = Group(2, [PROBE, "--layers", SPEC, "--steps", 100000000], settings)
        until(lambda: steps_of(group) > 3, what="training runs")
        seen = watch(group, 200, rank=1)
        if seen:
            check(seen["torn"] == 0, f"stage {stage} {dtype}: {seen}")
            check(seen["steps"][1] > seen["steps"][0], f"training stood still: {seen}")
        seen = watch(group, 3, 1000)  # longer than it may
        check(seen and seen["late"] == 3, f"an observer that holds too long is told: {seen}")
        dead = subprocess.Popen([str(WATCHER), "1", "3600000"],
                                env={**os.environ, "ZERO_SOCKET": str(group.runtime / "rank-0.sock")})
        until(lambda: (status(group.runtime) or {}).get("ranks", [{}])[0].get("observers"),
              what="the observer is there")
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        now = steps_of(group)
        until(lambda: steps_of(group) > now + 5, what="training goes on after an observer died")
        group.process.terminate()
        group.wait(60)
        group.close()
    done()


if __name__ == "__main__":
    main()
