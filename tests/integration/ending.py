# SPDX-License-Identifier: MIT
"""What the tests of a group's end share: groups that end, with daemons whose calls go wrong."""
from harness import *
from test_save import LARGE, ctl, settings, steps_in

FAULTS = BUILD / "tests" / "libfaults.so"
ZEROD = BUILD / "daemon" / "zerod"


def wrapped(folder, faults, rank=None, always=False):
    """A zerod whose calls go wrong (faults.c) in the first life of the daemon of `rank` (None: of
    both), in every life with `always`."""
    variables = " ".join(f"FAULT_{name.upper()}={value}" for name, value in faults.items())
    this = "true" if rank is None else f'[ "$2" = {rank} ]'
    life = "true" if always else f'mkdir {folder}/life-"$2" 2>/dev/null'
    wrapper = folder / "zerod"
    wrapper.write_text(f"#!/bin/sh\nif {this} && {life}; then\n"
                       f"export LD_PRELOAD={FAULTS} FAULT_URING=0 {variables}\nfi\n"
                       f'exec {ZEROD} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


class Ending:
    """A group that makes 3 steps, or runs another trainer, and ends."""

    def __init__(self, faults=None, rank=None, always=False, options=(), trainer=None, dir=None,
                 spec=LARGE, wait=60):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
        self.ck = pathlib.Path(dir or self.folder / "ck")
        zerod = wrapped(self.folder, faults, rank, always) if faults else ZEROD
        text = settings(self.ck, 2)
        text["zerod"]["wait_timeout_seconds"] = wait
        self.group = Group(2, trainer or [PROBE, "--layers", spec, "--steps", 3, "-q"], text,
                           options=("--zerod", zerod, "--restart-delay", "0", *options))

    def until_said(self, text):
        until(lambda: text in self.group.stderr() or self.group.process.poll() is not None, what=text)

    def signal(self, number):
        self.group.process.send_signal(number)

    def pids(self):
        """Of the daemons, by rank."""
        found = {}
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if str(self.group.runtime).encode() in words and b"--rank" in words:
                found[int(words[words.index(b"--rank") + 1])] = int(path.parent.name)
        return found

    def end(self):
        self.code, self.log = self.group.wait(), self.group.stderr()
        self.saved = steps_in(self.ck)
        self.good = self.saved == [3] and ctl("checkpoint", "verify", self.ck / "step-3").returncode == 0
        self.group.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return self

    def lost(self, code):
        """Nothing is saved, and nobody is left to think so."""
        return (self.code == code and self.saved == [] and
                self.log.count("the last step, 3, was not saved in") == 1 and
                f"zeroctl checkpoint list {self.ck}" in self.log)
