#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Whatever fails while a checkpoint is written, the old one or the new one is whole afterwards.

Every call that a save depends on fails once, in every way that it can: with an error, by doing half
of its work, by the process's death before or after it. Then what is left is checked value by value.
"""
# Label: long
import errno
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(os.environ.get("ZERO_BUILD", "build/test")).resolve()
SAVER = BUILD / "tests" / "saver"
FAULTS = BUILD / "tests" / "libfaults.so"
ZEROCTL = BUILD / "client" / "ctl" / "zeroctl"
KINDS = [str(errno.ENOSPC), str(errno.EIO), str(errno.EINTR), "short", "kill", "killed"]
MOST_CALLS = 1000

failures = []
injections = losses = 0


def check(fact, text):
    if not fact:
        failures.append(text)
        print(f"FAIL {text}", flush=True)


def save(folder, step, env=None, before=None):
    return subprocess.run([SAVER, "save", folder, str(step), "2", "bf16", "3", "tiny"], env=env,
                          capture_output=True, text=True, preexec_fn=before, timeout=60)


def newest(folder):
    """The newest step, after a look at every value of it; None when it is not whole."""
    run = subprocess.run([SAVER, "check", folder], capture_output=True, text=True, timeout=60)
    return int(run.stdout) if run.returncode == 0 else None


def remove_new(folder):
    for path in folder.iterdir():
        if path.name != "step-1":
            shutil.rmtree(path)


def look(folder, what, run):
    """After a save of step 2 that something happened to."""
    global losses
    step = newest(folder)
    died = run.returncode == -signal.SIGKILL
    if step is None or (run.returncode == 0 and step != 2):
        losses += 1
    check(step in (1, 2), f"{what}: the newest is {step}")
    check(run.returncode != 0 or step == 2, f"{what}: a save that passed is not there")
    check(died or run.returncode in (0, 1), f"{what}: exit {run.returncode} {run.stderr}")
    if run.returncode == 1:
        check(run.stderr.count(": ") > 1, f"{what}: no reason: {run.stderr}")
    if not died and step == 1:
        left = sorted(p.name for p in folder.iterdir())
        # a folder that could not be removed either stays, and prune takes it
        if left != ["step-1"]:
            pruned = subprocess.run([ZEROCTL, "checkpoint", "prune", folder, "--keep", "9"],
                                    capture_output=True, text=True)
            check(pruned.returncode == 0, f"{what}: prune: {pruned.stderr}")
            check(os.listdir(folder) == ["step-1"], f"{what}: left {os.listdir(folder)}")


def inject(folder, uring, kind):
    """The n-th call goes wrong, for every n until none is left."""
    global injections
    calls = 0
    env = dict(os.environ, LD_PRELOAD=str(FAULTS), FAULT_KIND=kind, FAULT_URING=uring)
    for n in range(1, MOST_CALLS):
        remove_new(folder)
        run = save(folder, 2, env=dict(env, FAULT_AT=str(n)))
        if "fault: " not in run.stderr:
            check(run.returncode == 0, f"without a fault: {run.stderr}")
            break
        calls += 1
        name = run.stderr.split("fault: ")[1].split("\n")[0]
        look(folder, f"{kind} at call {n} ({name}), uring {uring}", run)
        if kind == str(errno.EINTR) and name in ("write", "pwritev", "fsync", "fallocate",
                                                 "completion", "close"):
            check(run.returncode == 0, f"interrupted at {n} ({name}): {run.stderr}")
        if kind == "short":
            check(run.returncode == 0, f"short at {n} ({name}): {run.stderr}")
    check(20 < calls < MOST_CALLS - 1, f"{calls} calls went wrong")
    injections += calls
    print(f"{kind:>6}, {'io_uring' if uring == '1' else 'threads '}: {calls} injections", flush=True)


def files_of(path):
    """What tells a folder of a checkpoint from any other."""
    return sorted((p.name, p.stat().st_ino) for p in path.iterdir()) if path.is_dir() else []


def replace(folder, kind, name, number=None):
    """A save of a step that is there, another: the n-th rename, or every call, goes wrong. The name is
    never free, both are whole, and no prune takes the old one."""
    global injections
    env = dict(os.environ, LD_PRELOAD=str(FAULTS), FAULT_KIND=kind)
    if name is not None:
        env["FAULT_CALL"] = name
    for n in range(1, MOST_CALLS):
        what = f"replacing, {kind} at {name or 'call'} {n}"
        remove_new(folder)
        made = subprocess.run([SAVER, "save", folder, "2", "1", "bf16", "3", "tiny"], timeout=60,
                              capture_output=True, text=True)
        check(made.returncode == 0 and newest(folder) == 2, f"{what}: {made.stderr}")
        old = files_of(folder / "step-2")
        run = save(folder, 2, env=dict(env, FAULT_AT=str(n)))
        struck = "fault: " in run.stderr
        check(newest(folder) == 2, f"{what}: step-2 is not whole")
        subprocess.run([ZEROCTL, "checkpoint", "prune", folder, "--keep", "9"], check=True,
                       stdout=subprocess.DEVNULL)
        check(newest(folder) == 2, f"{what}: step-2 is not whole after a prune")
        found = [p.name for p in folder.iterdir() if files_of(p) == old]
        check(len(found) == 1, f"{what}: the old one is {found} of {os.listdir(folder)}")
        new = found != ["step-2"]
        check(new or run.returncode != 0, f"{what}: a save that passed is not there")
        check(not new or found[0].startswith("step-2.replaced-"), f"{what}: the old one is {found}")
        if run.returncode == 1 and not new:
            check(sorted(os.listdir(folder)) == ["step-1", "step-2"], f"{what}: {os.listdir(folder)}")
        if not struck:
            check(run.returncode == 0 and sorted(os.listdir(folder)) ==
                  ["step-1", "step-2", "step-2.replaced-1"], f"{what}: {run} {os.listdir(folder)}")
            break
        injections += 1
        if number is not None:
            check(run.returncode == 0, f"{what}: {run.stderr}")
    check(n > 1, f"{what}: nothing went wrong")
    print(f"replacing, {kind:>6} at {name or 'any call'}: {n - 1} injections", flush=True)


def after_death(folder):
    """What a save that died has left is told from a checkpoint, and pruned."""
    remove_new(folder)
    env = dict(os.environ, LD_PRELOAD=str(FAULTS), FAULT_KIND="kill", FAULT_AT="20")
    run = save(folder, 2, env=env)
    check(run.returncode == -signal.SIGKILL, f"killed: {run.returncode}")
    out = json.loads(subprocess.run([ZEROCTL, "checkpoint", "list", "--json", folder], check=True,
                                    capture_output=True, text=True).stdout)
    check([e["complete"] for e in out] == [True, False], f"list: {out}")
    check("ended early" in out[1]["why"] and not out[1]["busy"], f"list: {out}")
    subprocess.run([ZEROCTL, "checkpoint", "prune", folder, "--keep", "1"], check=True,
                   stdout=subprocess.DEVNULL)
    check(os.listdir(folder) == ["step-1"], f"after prune: {os.listdir(folder)}")


def limit_file(size):
    def before():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return before


def too_large(folder):
    for size in (0, 1000, 4096, 8192, 20000):
        remove_new(folder)
        run = save(folder, 2, before=limit_file(size))
        check(run.returncode == 1 and "File too large" in run.stderr,
              f"files of {size} bytes at most: {run.returncode} {run.stderr}")
        look(folder, f"files of {size} bytes at most", run)


def full_disk(folder):
    """A file system of its own, that is really full; where it cannot be had, that is said."""
    inner = folder / "disk"
    inner.mkdir()
    script = f"""mount -t tmpfs -o size=256k none {inner} || exit 77
        '{SAVER}' save {inner} 1 2 bf16 3 tiny || exit 3
        for room in 0 4 8 16 40 80; do
            rm -f {inner}/fill
            free=$(df -k --output=avail {inner} | tail -n 1)
            head -c $(( (free - room) * 1024 )) /dev/zero >{inner}/fill
            '{SAVER}' save {inner} 2 2 bf16 3 tiny && exit 4
            '{SAVER}' check {inner} || exit 5
        done
        rm {inner}/fill
        '{SAVER}' save {inner} 2 2 bf16 3 tiny || exit 6
        '{SAVER}' check {inner}"""
    run = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True)
    if run.returncode in (1, 77) and "saver" not in run.stderr and not run.stdout:
        print(f"no file system of our own: {run.stderr.strip()}", flush=True)
    else:
        check(run.returncode == 0, f"full disk: exit {run.returncode}: {run.stderr}{run.stdout}")
        check(run.stdout.split()[-1:] == ["2"] and run.stdout.count("1\n") >= 6,
              f"full disk: {run.stdout}")
        check(run.stderr.count("No space left") == 6, f"full disk: {run.stderr}")
        print("full disk: 6 saves refused, then one passed", flush=True)
    inner.rmdir()


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zero-faults-"))
    try:
        first = save(folder, 1)
        check(first.returncode == 0 and newest(folder) == 1, f"the first save: {first.stderr}")
        for uring in ("1", "0"):
            for kind in KINDS:
                inject(folder, uring, kind)
        for kind in ("kill", "killed", str(errno.EIO)):
            replace(folder, kind, None)
        for number in (errno.EINVAL, errno.ENOSYS):
            replace(folder, str(number), "renameat2", number)
        after_death(folder)
        remove_new(folder)
        too_large(folder)
        remove_new(folder)
        full_disk(folder)
    finally:
        shutil.rmtree(folder)
    print(f"{injections} injections, {losses} losses", flush=True)
    check(losses == 0, "a checkpoint was lost")
    print(f"{'failed' if failures else 'passed'}: {len(failures)} failures", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
