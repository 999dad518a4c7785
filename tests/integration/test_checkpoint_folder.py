#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""A folder of checkpoints is one group's at a time, whatever dies meanwhile; one that cannot be written
is told when a training begins; a newest one that is damaged stops a start that says what to do.
"""
import errno
import fcntl
import re
import resource
import signal
import struct

from harness import *
from test_save import SPEC, Idle, ctl, save, settings, steps_in

FAULTS = BUILD / "tests" / "libfaults.so"
ZEROD = BUILD / "daemon" / "zerod"
F_OFD_SETLK = 37

base = pathlib.Path(tempfile.mkdtemp(prefix="zf-"))


def train(folder, steps, options=(), world=2, env=None):
    """A group to its end: (code, what was logged). folder None: it has none."""
    group = Group(world, [PROBE, "--layers", SPEC, "--steps", steps, "-q"],
                  config(world) if folder is None else settings(folder, world), options, env)
    code = group.wait()
    text = group.stderr()
    group.close()
    return code, text


def refused(what, found, *texts):
    code, log = found
    check(code not in (0, None), f"{what}: exit {code}: {log}")
    for text in texts:
        check(text in log, f"{what}: nothing about {text!r}: {log}")


def fine(what, found, *texts):
    code, log = found
    check(code == 0, f"{what}: exit {code}: {log}")
    for text in texts:
        check(text in log, f"{what}: nothing about {text!r}: {log}")


def lead(idle):
    return status(idle.run)["ranks"][0]


def is_ready(idle, old):
    found = status(idle.run)
    return found and len(found["ranks"]) == idle.world and all(
        r.get("state") == "ready" for r in found["ranks"]) and found["ranks"][0]["epoch"] > old


def held(idle, folder, what):
    """Another group is told who has the folder, and leaves nothing there."""
    before = sorted(os.listdir(folder))
    refused(what, train(folder, 9), "BUSY", f"{folder} is where another group saves",
            f"pid {lead(idle)['pid']} on ", f"of the group in {idle.run}",
            "give this run a zerod.checkpoint.dir of its own")
    check(sorted(os.listdir(folder)) == before, f"{what}: {before}, then {os.listdir(folder)}")


def end(idle):
    idle.process.terminate()
    idle.process.wait(60)
    return idle.text()


def told(idle, step, what):
    until(lambda: (lead(idle) or {"checkpoint": {"step": None}})["checkpoint"]["step"] == step,
          what=what)
    found = lead(idle)["checkpoint"]
    check(found["step"] == step and 0 <= found["age"] < 3600 and not found["failed"],
          f"{what}: status says {found}")


def check_two_groups():
    """Of world 2, where rank 0 alone has the lock; by start, by hand, after deaths and an upgrade."""
    own = base / "own"
    first = Idle(text=settings(own, 2))
    check(lead(first)["checkpoint"]["step"] is None, f"none yet: {lead(first)['checkpoint']}")
    held(first, own, "a second group")
    run = save(first.run)
    check(run.stdout == f"{own}/step-3\n", f"the first one saves: {run}")
    fine("who reads", train(None, 4, ["--restore", own]), f"restoring the state of step 3 from {own}")

    second = Idle(text=settings(base / "second", 2))
    run = save(second.run, own)
    check(run.returncode == 1 and "another group saves" in run.stderr and
          "save into another folder" in run.stderr, f"by hand into a held one: {run}")
    for idle in (first, second):
        check(save(idle.run, base / f"by-hand-{id(idle)}").returncode == 0, "by hand")
        check(os.listdir(base / f"by-hand-{id(idle)}") == ["step-3"], "by hand: more than that")
    (base / "link").symlink_to(own)
    run = save(first.run, base / "link")
    check(run.stdout == f"{base}/link/step-3\n" and
          sorted(os.listdir(own)) == [".zerod-lock", "step-3"], f"by a link: {run} {os.listdir(own)}")
    second.close()

    for rank in (0, 1, 0):
        epoch = lead(first)["epoch"]
        os.kill(status(first.run)["ranks"][rank]["pid"], signal.SIGKILL)
        until(lambda: is_ready(first, epoch), what=f"the group after rank {rank}'s death")
        told(first, 3, f"after the death of rank {rank}")  # the lock is taken before
        check(locked(own) is None, f"not held after the death of rank {rank}")
    epoch, pid = lead(first)["epoch"], lead(first)["pid"]
    run = ctl("--runtime-dir", first.run, "upgrade", "--now")
    check(run.returncode == 0 and lead(first)["pid"] == pid and lead(first)["epoch"] > epoch,
          f"upgrade: {run}")
    told(first, 3, "after an upgrade")
    check(locked(own) is None, "not held after an upgrade")
    log = end(first)
    check("is not saved" not in log and "ended with exit code" not in log,
          f"the step that a predecessor had saved: {log}")
    fine("the next one", train(own, 5), f"from {own}/step-3")
    check(steps_in(own) == [3, 5], f"the next one: {steps_in(own)}")
    first.close()
    third = Idle(text=settings(own, 2))
    told(third, 5, "after a restore")
    third.close()


def locked(folder):
    """A lock on the folder, as another group's daemon has one; None if it is held."""
    fd = os.open(folder / ".zerod-lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.fcntl(fd, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def check_lost():
    """A training whose folder was taken while its daemon was dead goes on, and saves when it can."""
    own = base / "lost"
    idle = Idle(text=settings(own, 2))
    check(locked(own) is None, "the group has no lock")
    (own / ".zerod-lock").unlink()
    fd = locked(own)
    os.write(fd, b"the test\nand more\n")
    epoch = lead(idle)["epoch"]
    os.kill(lead(idle)["pid"], signal.SIGKILL)
    until(lambda: is_ready(idle, epoch), what="the group without a folder")
    until(lambda: "the training goes on, but cannot save now" in idle.text(), what="a warning")
    check(f"{own} is where another group saves (the test)" in idle.text(), idle.text())
    idle.train(4)
    run = save(idle.run)
    check(run.returncode == 1 and "another group saves (the test)" in run.stderr, f"taken: {run}")
    os.close(fd)
    run = save(idle.run)
    check(run.stdout == f"{own}/step-4\n", f"free again: {run}")
    check(locked(own) is None, "and it has the lock again")
    idle.close()


def check_broken_later():
    """What has the folder's place makes a save fail; a folder that is gone is made again."""
    own = base / "broken"
    idle = Idle(text=settings(own, 2))
    shutil.rmtree(own)
    own.write_text("")
    run = save(idle.run)
    check(run.returncode == 1 and f"{own} cannot be used as a folder: Not a directory" in run.stderr,
          f"a file: {run}")
    run = save(idle.run, own)
    check(run.returncode == 1 and "Not a directory" in run.stderr and "is there" not in run.stderr,
          f"a file by its name: {run}")
    own.unlink()
    check(save(idle.run).stdout == f"{own}/step-3\n", "made again")
    check(locked(own) is None, "made again: not held")
    idle.close()


def check_unwritable():
    """Told before a step is made, with the path and the reason."""
    file = base / "file"
    file.write_text("")
    for folder, text in ((file, f"{file} cannot be used as a folder: Not a directory"),
                         (file / "x", f"{file} cannot be used as a folder: Not a directory"),
                         ("/proc/nowhere", "/proc/nowhere cannot be made: No such file"),
                         ("/proc", "/proc/.zerod-lock cannot be opened to write: ")):
        refused(f"{folder}", train(folder, 3), "use zerod.checkpoint.dir: ", text)
    check(file.read_text() == "", "the file was changed")
    script = """mount -t tmpfs -o ro none "$1" && touch "$2" || exit 77
    while [ ! -e "$3" ]; do sleep 0.05; done"""
    (base / "ro").mkdir()
    room = subprocess.Popen(["unshare", "-m", "sh", "-c", script, "-", base / "ro", base / "mounted",
                             base / "over"])
    until(lambda: room.poll() is not None or (base / "mounted").exists(), what="a mount")
    if room.poll() is None:
        folder = f"/proc/{room.pid}/root{base}/ro"
        refused("read-only", train(folder, 3), f"{folder}/.zerod-lock cannot be opened to write: "
                "Read-only file system")
        refused("read-only, deep", train(folder + "/x", 3), "x cannot be made: Read-only")
    else:
        print("no file system of our own can be mounted here: the read-only one is left out")
    (base / "over").touch()
    room.wait(60)


def faulty(call, number, path=""):
    """Options of a group whose daemons' first such call fails."""
    wrapper = base / "zerod"
    wrapper.write_text(f'#!/bin/sh\nexport LD_PRELOAD={FAULTS} FAULT_CALL={call} FAULT_AT=1\n'
                       f'export FAULT_KIND={number} FAULT_PATH={path}\nexec {ZEROD} "$@"\n')
    wrapper.chmod(0o755)
    return ["--zerod", wrapper]


def check_trial():
    """What a save needs of the file system is tried; a lock is not needed, but missed."""
    for call, text in (("fsync", "cannot be brought to the disk: Input/output error"),
                       ("renameat", "no file can be renamed in ")):
        folder = base / call
        refused(call, train(folder, 3, faulty(call, errno.EIO), world=1), text, str(folder))
        check(os.listdir(folder) == [".zerod-lock"], f"{call}: left {os.listdir(folder)}")
    folder = base / "unlocked"
    fine("no locks", train(folder, 3, faulty("fcntl", errno.ENOLCK), world=1), "cannot be locked: "
         "No locks available: nothing keeps another group from saving there too")
    check(steps_in(folder) == [3], f"no locks: {steps_in(folder)}")


def damage(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"!!!!!!!!")


def check_damaged():
    """Data of the newest, then a manifest too: nothing goes back by itself but for a manifest."""
    own = base / "damaged"
    for step in (3, 5, 6):
        fine(f"step {step}", train(own, step))
    newest = own / "step-6"
    data = newest / "rank-1.safetensors"
    damage(data, data.stat().st_size - 4096)
    words = re.compile(re.escape(f"{newest}: rank-1.safetensors: bytes ") + r"\d+ to \d+ do not match")
    for options in ([], ["--restore", own], ["--restore", newest]):
        what = f"damaged data, {options}"
        code, log = train(own, 7, options)
        refused(what, (code, log), "CORRUPT", f"Move step-6 away, or start from the newest complete one "
                f"before it: --restore {own}/step-5")
        check(words.search(log), f"{what}: {log}")
        check(steps_in(own) == [3, 5, 6], f"{what}: {steps_in(own)}")
    damage(own / "step-5" / "manifest.json", 50)
    refused("and a manifest", train(own, 7), f"before it: --restore {own}/step-3")
    (newest / "rank-0.safetensors").unlink()
    refused("a part is missing", train(own, 7, ["--restore", newest]), "CORRUPT",
            f"{newest}: rank-0.safetensors", f"--restore {own}/step-3")
    newest.rename(base / "step-6")
    refused("alone", train(None, 7, ["--restore", base / "step-6"]),
            "There is no complete one before it in its folder")
    fine("moved away", train(own, 7), f"passing over {own}/step-5: ", f"from {own}/step-3")
    check(steps_in(own)[-1] == 7, f"moved away: {steps_in(own)}")


def check_unread():
    """What could not be looked at may be whole: a start ends, and nothing is removed for it."""
    own = base / "unread"
    for step in (3, 5, 6):
        fine(f"step {step}", train(own, step))
    for call, path, number, reason in (
            ("open", "/step-6", errno.EACCES, "step-6 cannot be opened: Permission denied"),
            ("openat", "manifest.json", errno.EMFILE, "manifest.json cannot be opened: Too many open"),
            ("openat", "rank-1.json", errno.EIO, "rank-1.json cannot be opened: Input/output error"),
            ("openat", "rank-1.safetensors", errno.ESTALE, "rank-1.safetensors cannot be opened: Stale"),
            ("pread", "", errno.EIO, "manifest.json cannot be read at byte 0: Input/output error")):
        for options in ([], ["--restore", own]):
            code, log = train(own, 7, [*faulty(call, number, path), *options])
            refused(f"{reason}, {options}", (code, log), f"{own}/step-6: ", reason,
                    "Make it readable and start again. Move step-6 away, or start from the newest "
                    f"complete one before it: --restore {own}/step-5")
            check("passing over" not in log and steps_in(own) == [3, 5, 6], f"{reason}: {log}")
    refused("not by its path either", train(own, 7, [*faulty("openat", errno.EACCES, "rank-0.json"),
            "--restore", own / "step-6"]), "Permission denied", f"--restore {own}/step-5")
    fine("readable again", train(own, 7), f"from {own}/step-6")
    check(steps_in(own) == [5, 6, 7], f"readable again: {steps_in(own)}")

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))
    list_with = [ZEROCTL, "checkpoint", "list", own]
    run = subprocess.run(list_with, capture_output=True, text=True, preexec_fn=few)
    check(run.returncode == 4 and run.stdout.count("unreadable: manifest.json cannot be opened: Too "
          "many open files") == 3 and "incomplete" not in run.stdout, f"list with few fds: {run}")
    run = subprocess.run([*list_with, "--json"], capture_output=True, text=True, preexec_fn=few)
    check(run.returncode == 4 and [(c["complete"], c["unread"]) for c in json.loads(run.stdout)] ==
          [(False, True)] * 3, f"list --json with few fds: {run}")
    run = subprocess.run([ZEROCTL, "checkpoint", "prune", "--keep", "1", own], capture_output=True,
                         text=True, preexec_fn=few)
    check(run.stdout == "0 removed\n" and steps_in(own) == [5, 6, 7], f"prune with few fds: {run}")


def inode(path):
    return os.lstat(path).st_ino


def check_replaced():
    """The last step gets its name: of a checkpoint that is cut short, of another timeline, of what is
    none at all. What had it is set aside, whole, and nothing takes or removes that."""
    own = base / "replaced"
    for step in (3, 5, 6):
        fine(f"step {step}", train(own, step))
    data = own / "step-6" / "rank-1.safetensors"
    os.truncate(data, data.stat().st_size - 1)
    old = inode(own / "step-6")
    fine("cut short", train(own, 6), f"passing over {own}/step-6: ", f"from {own}/step-5",
         f"{own} had another step-6: that is step-6.replaced-1 now")
    check(steps_in(own) == [3, 5, 6] and inode(own / "step-6.replaced-1") == old, "cut short")
    old = inode(own / "step-6")
    fine("another timeline", train(own, 6, ["--restore", own / "step-3"], world=3),
         f"{own} has a checkpoint of step 6, and this run begins at step 3",
         "its own gets the name, and the old one becomes step-<n>.replaced-<k>",
         f"{own} had another step-6: that is step-6.replaced-2 now")
    check(steps_in(own) == [3, 5, 6] and inode(own / "step-6.replaced-2") == old, "another timeline")
    run = ctl("checkpoint", "list", own)
    check(run.returncode == 0 and run.stdout.count("set aside: a later save has its name") == 2, f"{run}")
    run = ctl("checkpoint", "prune", "--keep", 1, own)
    check(run.stdout == "2 removed\n" and steps_in(own) == [6], f"prune: {run}")
    code, log = train(own, 7, world=3)
    fine("the newest", (code, log), f"from {own}/step-6\n")
    check("replaced-" not in log, f"the newest: {log}")
    fine("one that was set aside, by its path", train(own, 6, ["--restore", own / "step-6.replaced-2"]),
         f"{own} had another step-6: that is step-6.replaced-3 now")
    check(ctl("checkpoint", "verify", own / "step-6").returncode == 0, "one that was set aside")
    (own / "step-9").write_text("notes")
    (own / "step-8").symlink_to("step-7")
    fine("a file", train(own, 9), f"passing over {own}/step-9: ", "that is step-9.replaced-1 now")
    check((own / "step-9.replaced-1").read_text() == "notes", "a file")
    fine("a link", train(own, 8, ["--restore", own / "step-7"]), "that is step-8.replaced-1 now")
    check(os.readlink(own / "step-8.replaced-1") == "step-7" and steps_in(own)[-3:] == [7, 8, 9],
          f"a link: {steps_in(own)}")


def check_crowded():
    """Of an earlier timeline there are as many later checkpoints as are kept: the new one stays."""
    own = base / "crowded"
    for step in (3, 5, 6, 7):
        fine(f"step {step}", train(own, step))
    check(steps_in(own) == [5, 6, 7], f"{steps_in(own)}")
    text = settings(own, 2, keep=1)
    group = Group(2, [PROBE, "--layers", SPEC, "--steps", 6, "-q"], text, ["--restore", own / "step-5"])
    code, log = group.wait(), group.stderr()
    group.close()
    fine("crowded", (code, log), "removed 1 old checkpoint in")
    check(steps_in(own) == [6, 7], f"crowded: {steps_in(own)}: {log}")


def main():
    try:
        for part in (check_two_groups, check_lost, check_broken_later, check_unwritable, check_trial,
                     check_damaged, check_unread, check_replaced,
                     check_crowded):
            begun = time.monotonic()
            part()
            print(f"{part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    done()


if __name__ == "__main__":
    main()
