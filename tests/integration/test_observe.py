#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""An observer reads whole steps that nobody can change, and training goes on whatever it does."""
import signal

from harness import *
from holder import Holder

WATCHER = BUILD / "tests" / "watcher"
SPEC = "a:300x300,300;b:200x500;c:17"
LARGE = "a:1200x1000;b:1000x1000"
ELEMENTS = {SPEC: 90000 + 300 + 100000 + 17}


class Training:
    """Daemons, and a probe a rank that trains for ever; rank 0's tells the sum of every step."""

    def __init__(self, settings, spec=SPEC, world=2):
        self.holder = Holder(world)
        self.config = self.holder.folder / "config.json"
        self.config.write_text(json.dumps(settings))
        self.out = self.holder.folder / "sums"
        self.processes, self.known, self.read_up_to = [], {}, 0
        atexit.register(self.close)
        for rank in range(world):
            env = {**os.environ, "ZERO_SOCKET": self.holder.socket_of(rank),
                   "ZERO_CONFIG": str(self.config)}
            command = [str(PROBE), "--layers", spec, "--steps", "100000000", "--quiet"]
            with open(self.out if rank == 0 else os.devnull, "w") as out:
                self.processes.append(subprocess.Popen(
                    command + (["--sums"] if rank == 0 else []), env=env, stdout=out,
                    stdin=subprocess.DEVNULL))
        until(lambda: self.step() > 3, what="training runs")

    def step(self):
        """The last step of which a sum is known."""
        with open(self.out) as lines:
            lines.seek(self.read_up_to)
            for line in iter(lines.readline, ""):
                if not line.endswith("\n"):
                    break
                self.read_up_to += len(line)
                told = json.loads(line)
                self.known[told["after"]] = told["sum"]
        return max(self.known, default=0)

    def sum_of(self, step):
        until(lambda: self.step() >= step, what=f"step {step} is told")
        return self.known[step]

    def goes_on(self, steps=5):
        now = self.step()
        until(lambda: self.step() > now + steps, what="training goes on")

    def rate(self, steps=100):
        """Steps a second, now."""
        first, begin = self.step(), time.monotonic()
        until(lambda: self.step() >= first + steps, what="steps are made")
        return (self.step() - first) / (time.monotonic() - begin)

    def close(self):
        atexit.unregister(self.close)
        for process in self.processes:
            process.kill()
            process.wait()
        self.holder.close()


class Watcher:
    def __init__(self, training, rank=0):
        self.process = subprocess.Popen(
            [str(WATCHER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "ZERO_SOCKET": training.holder.socket_of(rank)})
        atexit.register(self.kill)

    def say(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"watcher ended: {self.process.wait()}")
        return json.loads(line)

    def ask(self, words):
        self.say(words)
        return self.hear()

    def kill(self):
        atexit.unregister(self.kill)
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def versions_of(training, rank=0):
    run = subprocess.run([str(ZEROCTL), "--runtime-dir", str(training.holder.runtime), "versions",
                          "--json"], capture_output=True, text=True, timeout=60)
    check(run.returncode == 0, f"zeroctl versions: {run.returncode} {run.stderr}")
    return json.loads(run.stdout)["ranks"][rank]["versions"]


def whole_steps(training, what, rounds=20):
    """Observers of both ranks at once, reading without a pause."""
    watchers = [Watcher(training, rank) for rank in (0, 1)]
    reads = [[], []]

    def read_on():
        for watcher in watchers:
            watcher.say(f"loop {rounds}")
        for watcher, seen in zip(watchers, reads):
            seen += [watcher.hear() for _ in range(rounds)]
        return all(len({read["step"] for read in seen}) > 4 for seen in reads)

    until(read_on, what=f"{what}: observers see several steps")
    for watcher, seen in zip(watchers, reads):
        for read in seen:
            check(read["code"] == "OK" and read["sum"] == training.sum_of(read["step"]),
                  f"{what}: {read}, the trainer had {training.known.get(read['step'])}")
        steps = [read["step"] for read in seen]
        check(steps == sorted(steps), f"{what}: back in time: {steps}")
        watcher.kill()


def stays_as_it_is(training, what):
    watcher = Watcher(training, rank=1)
    check(watcher.ask("sum")["code"] == "INVALID_STATE", f"{what}: gather without a version")
    got = watcher.ask("open latest")
    check(got["code"] == "OK", f"{what}: {got}")
    first = watcher.ask("sum")
    check(first["sum"] == training.sum_of(got["step"]), f"{what}: {first}")
    ways = watcher.ask("write")
    check(ways.pop("base") == 1, f"{what}: the version is mapped")
    # opening may be allowed (it is one's own user's memory): changing is not
    opened = ways.pop("open")
    check(opened in (0, 1, 13) and all(way in (1, 13) for way in ways.values()), f"{what}: {ways}")
    training.goes_on(20)
    check(watcher.ask("sum") == first, f"{what}: a version changed")
    check(watcher.ask("open latest")["code"] == "INVALID_STATE", f"{what}: two at once")
    check(watcher.ask("close")["code"] == "OK", what)
    check(watcher.ask("close")["code"] == "INVALID_STATE", f"{what}: closed twice")
    # nobody needed its room meanwhile: it is still there, under its number
    again = watcher.ask(f"open {got['step']}")
    check(again["code"] == "OK" and watcher.ask("sum") == first, f"{what}: {again}")
    watcher.kill()


def bounded(training):
    """keep is 2."""
    one, two, three = (Watcher(training) for _ in range(3))
    first = one.ask("open latest")["step"]
    training.goes_on(3)
    second = two.ask("open latest")["step"]
    check(second > first, f"{first}, then {second}")
    training.goes_on(3)
    got = three.ask("open latest")
    check(got["code"] == "BUSY" and "zerod.versions.keep" in got["text"], got)
    check(three.ask("list")["steps"] == [first, second], "the versions there are")
    got = three.ask("open 1000000")
    check(got["code"] == "NOT_FOUND" and f"{first}, {second}" in got["text"], got)
    check(three.ask(f"open {first}")["step"] == first, "the same version for two")
    kept = versions_of(training)
    check([(v["step"], v["readers"]) for v in kept] == [(first, 2), (second, 1)], kept)
    check(all(v["bytes"] >= 4 * ELEMENTS[SPEC] and v["age"] > 0 for v in kept), kept)
    rank = status(training.holder.runtime)["ranks"][0]
    check(rank["versions"] == 2 and rank["version_bytes"] == sum(v["bytes"] for v in kept) and
          rank["versions_planned"] == rank["version_bytes"] and rank["observers"] == 3, rank)
    one.process.send_signal(signal.SIGKILL)
    three.process.send_signal(signal.SIGKILL)
    until(lambda: versions_of(training)[0]["readers"] == 0, what="dead observers read nothing")
    four = Watcher(training)
    got = four.ask("open latest")
    check(got["code"] == "OK" and got["step"] > second, got)
    check(four.ask("list")["steps"] == [second, got["step"]], "the oldest that nobody read is gone")
    table = subprocess.run([str(ZEROCTL), "--runtime-dir", str(training.holder.runtime), "versions"],
                           capture_output=True, text=True, timeout=60).stdout
    check(str(got["step"]) in table and "readers" in table, table)
    for watcher in (one, two, three, four):
        watcher.kill()


def outlives_its_daemon(training, what):
    watcher = Watcher(training, rank=1)
    got = watcher.ask("open latest")
    first = watcher.ask("sum")
    check(first["sum"] == training.sum_of(got["step"]), f"{what}: {first}")
    started = training.holder.ready[1]
    training.holder.kill(1)
    check(watcher.ask("sum") == first, f"{what}: a version without its daemon")
    until(lambda: training.holder.ready[1] > started, what="the daemon is back")
    training.goes_on()
    check(watcher.ask("list")["steps"] == [], f"{what}: the successor has no versions")
    check(watcher.ask("sum") == first, f"{what}: a version beside the successor")
    check(watcher.ask("close")["code"] == "OK", f"{what}: close after the daemon's death")
    missing = watcher.ask(f"open {got['step']}")
    check(missing["code"] == "NOT_FOUND" and "none" in missing["text"], missing)
    training.holder.kill(1)  # and while nothing is open
    got = watcher.ask("open latest")
    check(got["code"] == "OK" and watcher.ask("sum")["sum"] == training.sum_of(got["step"]),
          f"{what}: {got}")
    watcher.kill()


def stages():
    for dtype in ("fp32", "bf16"):
        for stage in range(4):
            what = f"stage {stage} {dtype}"
            training = Training(config(2, stage=stage, dtype=dtype))
            whole_steps(training, what)
            stays_as_it_is(training, what)
            if dtype == "fp32" and stage in (0, 3):
                bounded(training)
            outlives_its_daemon(training, what)
            training.close()


def made_by_themselves():
    settings = config(2, stage=3)
    settings["zerod"]["versions"] = {"every_steps": 10, "keep": 3}
    training = Training(settings)
    until(lambda: len(versions_of(training)) == 3, what="versions are made")
    watcher = Watcher(training)
    steps = watcher.ask("list")["steps"]
    for step in steps:
        got = watcher.ask(f"open {step}")
        if got["code"] == "NOT_FOUND":  # a newer one took its place
            continue
        check(watcher.ask("sum")["sum"] == training.sum_of(step), f"version {step} of {steps}")
        watcher.ask("close")
    until(lambda: min(watcher.ask("list")["steps"]) > steps[-1], what="old versions go")
    watcher.kill()
    training.close()


def too_small():
    settings = config(2, stage=2)
    settings["zerod"]["versions"] = {"max_bytes": 4096}
    training = Training(settings)
    watcher = Watcher(training)
    got = watcher.ask("open latest")
    check(got["code"] == "TOO_LARGE" and "zerod.versions.max_bytes" in got["text"], got)
    watcher.kill()
    training.close()


def ends_with_its_group():
    training = Training(config(2, stage=1))
    watcher = Watcher(training)
    first = watcher.ask("open latest") and watcher.ask("sum")
    training.holder.restarts = False
    run = subprocess.run([str(ZEROCTL), "--runtime-dir", str(training.holder.runtime), "shutdown",
                          "--yes"], capture_output=True, text=True, timeout=60)
    check(run.returncode == 0, f"shutdown: {run.stderr}")
    check(watcher.ask("sum") == first, "a version outlives its group")
    check(watcher.ask("close")["code"] == "OK", "close after the group")
    begin = time.monotonic()
    got = watcher.ask("open latest")
    check(got["code"] == "DAEMON_LOST" and "shut down" in got["text"], got)
    check(time.monotonic() - begin < 30, "nobody is waited for: the deadline is 60 s")
    watcher.kill()
    training.close()


def rates():
    """Printed, not judged: on few cores an observer takes time from trainers by running at all."""
    for stage in (2, 3):
        training = Training(config(2, stage=stage), spec=LARGE)
        training.rate(20)
        alone = training.rate(60)
        watcher = Watcher(training, rank=1)
        watcher.say("loop 100000")
        watcher.hear()
        watched = training.rate(60)
        print(f"stage {stage}: {alone:.1f} steps/s alone, {watched:.1f} with an observer that reads "
              f"without a pause: {watched / alone:.2f}", flush=True)
        watcher.kill()
        training.close()


def main():
    stages()
    made_by_themselves()
    too_small()
    ends_with_its_group()
    rates()
    done()


if __name__ == "__main__":
    main()
