#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""zeroctl upgrade, while a model is trained: a good program takes every daemon's place, and whatever is
wrong with a program costs nothing. Each run ends with the weights of an undisturbed one.
"""
import os
import re
import shutil
import signal
import subprocess
import tempfile

from harness import BUILD, GPT, LIMIT, SOURCE, ZEROCTL, Group, check, done, status, until

BOOK = SOURCE / "tests" / "data" / "devils-dictionary.txt"
ZEROD = BUILD / "daemon" / "zerod"
STEPS = 1000


def final_hash(group):
    found = re.findall(r"weights sha256=([0-9a-f]{64}) step=(\d+)", group.stdout())
    return found[-1] if found else None


class Run:
    """gpt on 2 ranks, whose daemons are a copy of zerod that may be replaced."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="zu-")
        self.program = os.path.join(self.folder, "zerod")
        shutil.copy(ZEROD, self.program)
        self.group = Group(2, [GPT, "--text", BOOK, "--steps", STEPS, "--width", 16, "--heads", 2],
                           env={"ZEROD": self.program})
        self.runtime = self.group.runtime
        until(lambda: self.step() >= 5, what="it trains")

    def install(self, text=None, mode=0o755):
        """As `install` does: a new file under the name, which a running process does not notice."""
        new = self.program + ".new"
        if text is None:
            shutil.copy(ZEROD, new)
        else:
            with open(new, "w") as file:
                file.write(text)
        os.chmod(new, mode)
        os.rename(new, self.program)

    def ranks(self):
        now = status(self.runtime)
        return now["ranks"] if now else []

    def step(self):
        ranks = self.ranks()
        return min(r.get("step", 0) for r in ranks) if len(ranks) == 2 else 0

    def start_upgrade(self, *options):
        return subprocess.Popen([ZEROCTL, "--runtime-dir", self.runtime, "upgrade", *options],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def upgrade(self, *options):
        process = self.start_upgrade(*options)
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err

    def becomes(self, program, what, *options):
        code, out, err = self.upgrade(*options)
        links = [os.readlink(f"/proc/{pid}/exe") for pid in self.pids()]
        check(code == 0 and links == [program] * 2, f"{what}: {out} {err} {links}")

    def pids(self, key="pid"):
        return [r.get(key) for r in self.ranks()]

    def end(self, name, expected):
        code = self.group.wait()
        check(code == 0, f"{name}: exit code {code}: {self.group.stderr()[-2000:]}")
        check(final_hash(self.group) == expected, f"{name}: {final_hash(self.group)}")

    def close(self):
        self.group.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def undisturbed():
    run = Run()
    check(run.group.wait() == 0, run.group.stderr())
    out = final_hash(run.group)
    run.close()
    check(out is not None and out[1] == str(STEPS), f"undisturbed: {out}")
    return out


def hold(run):
    """No step ends while a trainer is stopped."""
    trainer = run.pids("trainer_pid")[1]
    os.kill(trainer, signal.SIGSTOP)
    return trainer


def good(expected):
    run = Run()
    before = run.pids()
    for options in (("--now",), ()):
        run.install()
        trainer = hold(run) if options else None
        code, out, err = run.upgrade(*options)
        if trainer is not None:
            os.kill(trainer, signal.SIGCONT)
        check(code == 0 and out.startswith("2 daemons were replaced: zerod "), f"{out} {err}")
        check(run.pids() == before, "the processes are the same")
        links = [os.readlink(f"/proc/{p}/exe") for p in before]
        check(links == [run.program] * 2, f"they run the new file: {links}")
    run.end("good", expected)
    run.close()


def refused(expected):
    """Each program that cannot take over is told with its reason, at once, and training goes on."""
    run = Run()
    trainer = hold(run)  # so that it does not end meanwhile
    before, began = run.pids(), run.step()
    real = os.path.join(run.folder, "real")
    shutil.copy(ZEROD, real)
    # A zerod that has another format, told by the real option's words.
    other = f'#!/bin/sh\n[ "$1" = --can-take ] && exec {real} --can-take "model 999" --world 2\nexit 1\n'
    for name, text, mode, words in (
            ("not executable", "#!/bin/sh\n", 0o644, "permission denied"),
            ("no program", "echo nonsense\n", 0o755, "it is no program: exec format error"),
            ("fails", "#!/bin/sh\necho no library >&2\nexit 127\n", 0o755,
             "exit code 127: no library"),
            ("another program", "#!/bin/sh\nexit 0\n", 0o755,
             "does not answer --can-take as zerod does: it said nothing"),
            ("empty", "", 0o755, "it is no program: exec format error"),
            ("dies", "#!/bin/sh\nkill -SEGV $$\n", 0o755, "killed by signal 11"),
            ("another format", other, 0o755, "exit code 78: the state is in the formats 'model 999'")):
        run.install(text, mode)
        code, out, err = run.upgrade()
        check(code == 1 and words in err and "rank 0" in err and "rank 1" in err
              and "every daemon goes on as it is" in err, f"{name}: {code} {out} {err}")
        check(run.ranks()[0]["upgrade"] == "refused", f"{name}: status tells")
    os.unlink(run.program)
    code, out, err = run.upgrade()
    check(code == 1 and "no such file" in err, f"missing: {code} {out} {err}")
    check(run.pids() == before, "the same processes")
    os.kill(trainer, signal.SIGCONT)
    until(lambda: run.step() > began or run.group.process.poll() is not None, what="steps go on")
    run.install()
    code, out, err = run.upgrade()  # and a good one after all that
    check(code == 0, f"good after bad: {out} {err}")
    run.end("refused", expected)
    run.close()


def hanging(expected):
    run = Run()
    trainer = hold(run)
    left = os.path.join(run.folder, "left")
    run.install(f"#!/bin/sh\nsleep 1000 &\necho $! >> {left}\nwait\n")
    code, out, err = run.upgrade()
    os.kill(trainer, signal.SIGCONT)
    check(code == 1 and "did not answer --can-take in 10 s" in err, f"hanging: {code} {out} {err}")
    with open(left) as file:
        pids = file.read().split()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), what="its child is gone")
    check(len(pids) == 2, f"hanging: {pids}")
    run.end("hanging", expected)
    run.close()


def waiting(run):
    until(lambda: (run.ranks() or [{}])[0].get("upgrade") == "waiting", what="the upgrade waits")


def gone_after_the_trial(expected):
    """A program that goes away before it is executed: the daemon becomes itself once more. Another
    upgrade meanwhile is told so."""
    run = Run()
    trainer = hold(run)
    process = run.start_upgrade()
    waiting(run)
    code, _, err = run.upgrade()
    check(code == 1 and "another upgrade is under way" in err, f"second: {code} {err}")
    os.unlink(run.program)
    os.kill(trainer, signal.SIGCONT)
    _, err = process.communicate(timeout=LIMIT)
    check(process.returncode == 1 and "goes on as it was: " in err and "No such file" in err,
          f"gone: {process.returncode} {err}")
    run.install()
    code, out, err = run.upgrade()
    check(code == 0, f"good after that: {out} {err}")
    run.end("gone", expected)
    run.close()


def changed_after_the_trial(expected):
    """A program that nobody tried is not executed, also when the running one has another name by now;
    and the next upgrade is to the one that is installed."""
    run = Run()
    trainer = hold(run)
    process = run.start_upgrade()
    waiting(run)
    os.rename(run.program, run.program + ".old")
    run.install("#!/bin/sh\nexit 5\n")
    os.kill(trainer, signal.SIGCONT)
    _, err = process.communicate(timeout=LIMIT)
    check(process.returncode == 1 and err.count(f"{run.program}: it was changed after") == 2, err)
    run.install()
    run.becomes(run.program, "changed")
    run.end("changed", expected)
    run.close()


def named_by_others(expected):
    """The program is the one that zerorun was given: a link that points to another version by then, and
    what is in the place of a script that executed another one."""
    run = Run()
    versions = [os.path.join(run.folder, name) for name in ("v1", "v2")]
    for version in versions:
        shutil.copy(ZEROD, version)
        os.symlink(version, run.program + ".new")
        os.rename(run.program + ".new", run.program)
        run.becomes(version, "a link")
    run.install(f'#!/bin/sh\nexec {versions[0]} "$@"\n')
    run.becomes(versions[0], "a script")
    run.install()
    run.becomes(run.program, "after a script")
    run.end("named by others", expected)
    run.close()


def taken_up(expected):
    """One that waits for a step, and whose asker is gone, can be told to wait no longer."""
    run = Run()
    trainer, before = hold(run), run.ranks()[0]["epoch"]
    process = run.start_upgrade()
    waiting(run)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT)
    code, out, err = run.upgrade("--now")
    os.kill(trainer, signal.SIGCONT)
    check(code == 0 and run.ranks()[0]["epoch"] > before, f"taken up: {out} {err}")
    run.end("taken up", expected)
    run.close()


def fails_after_the_trial(expected):
    """It can take the state, it says, and then fails twice: its holder starts it again."""
    run = Run()
    real = os.path.join(run.folder, "real")
    shutil.copy(ZEROD, real)
    lives = os.path.join(run.folder, "life.$3")
    run.install(f'#!/bin/sh\n[ "$1" = --can-take ] && exec {real} "$@"\necho >> {lives}\n'
                f'[ $(wc -l < {lives}) -gt 2 ] || exit 127\nexec {real} "$@"\n')
    code, out, err = run.upgrade()
    check(code == 0, f"fails at first: {out} {err}")
    check("ended with exit code 127: restart" in run.group.stderr(), run.group.stderr())
    run.end("fails at first", expected)
    run.close()


def group_ends():
    """Who waits for the upgrade of a group that ends is told so, and soon: its deadline is far."""
    run = Run()
    hold(run)
    process = run.start_upgrade("--deadline", "3600")
    waiting(run)
    run.group.process.kill()
    _, err = process.communicate(timeout=LIMIT)
    check(process.returncode == 1 and "the group has ended" in err, f"ended: {err}")
    run.close()


expected = undisturbed()
good(expected)
refused(expected)
hanging(expected)
gone_after_the_trial(expected)
changed_after_the_trial(expected)
named_by_others(expected)
taken_up(expected)
fails_after_the_trial(expected)
group_ends()
done()
