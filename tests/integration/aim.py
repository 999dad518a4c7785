# SPDX-License-Identifier: MIT
"""Kills a daemon at an instruction: its worker thread runs to a function, then goes on one instruction
at a time. The journal is looked at meanwhile, through the fd that the holder keeps.

The daemon knows nothing of it: no hook is compiled in. x86-64, and ptrace(2) must be allowed.
"""
import ctypes
import functools
import mmap
import os
import platform
import signal
import struct
import subprocess
import time

from holder import ZEROD

INTERRUPT, SEIZE, CONT, STEP, GETREGS, SETREGS = 0x4207, 0x4206, 7, 9, 12, 13
WALL = 0x40000000
RIP = 16  # of the registers, in 8 bytes
BREAKPOINT = b"\xcc"

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, tid, data=None):
    if libc.ptrace(request, tid, None, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x}")


def why_not():
    """Why daemons cannot be traced here; None if they can."""
    if platform.machine() != "x86_64":
        return f"registers and breakpoints are x86-64's, this is {platform.machine()}"
    child = subprocess.Popen(["sleep", "60"])
    try:
        ptrace(SEIZE, child.pid)
    except OSError as error:
        return str(error)
    finally:
        child.kill()
        child.wait()
    return None


@functools.cache
def symbols():
    lines = subprocess.run(["nm", ZEROD], check=True, capture_output=True, text=True).stdout
    return {part[2]: int(part[0], 16) for part in map(str.split, lines.splitlines())
            if len(part) == 3 and part[1] in "tT"}


def worker_of(pid):
    """The thread that touches state is the batch thread; None: there is none yet."""
    try:
        if os.readlink(f"/proc/{pid}/exe") != str(ZEROD):
            return None
        return next((int(tid) for tid in os.listdir(f"/proc/{pid}/task")
                     if os.sched_getscheduler(int(tid)) == os.SCHED_BATCH), None)
    except OSError:
        return None


class Journal:
    """What journal.h says about the arena, of which the holder has the fd."""

    WORDS = {"newest": 48, "begun": 56, "done": 64}

    def __init__(self, fd):
        self.memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)

    def word(self, name):
        return struct.unpack_from("<Q", self.memory, self.WORDS[name])[0]

    def chunk(self, name):
        return self.word(name) & 0xffffffff


class Traced:
    """A daemon whose worker stands still, but for what is asked here. Ends with kill() or let_go()."""

    def __init__(self, pid, limit):
        self.pid, self.end = pid, time.monotonic() + limit
        while (tid := worker_of(pid)) is None:
            self.pause()
        self.tid = tid
        ptrace(SEIZE, self.tid)
        ptrace(INTERRUPT, self.tid)
        self.stopped()
        with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
            self.base = next(int(line.split("-")[0], 16) for line in maps if line.endswith(f"{ZEROD}\n"))
        self.memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)

    def pause(self):
        if time.monotonic() > self.end:
            raise TimeoutError(f"daemon {self.pid} does not come there")
        time.sleep(0.0003)

    def stopped(self):
        while os.waitpid(self.tid, WALL | os.WNOHANG) == (0, 0):
            self.pause()

    def run_to(self, function):
        """Stops at its first instruction."""
        at = self.base + symbols()[function]
        before = os.pread(self.memory, 1, at)
        os.pwrite(self.memory, BREAKPOINT, at)
        ptrace(CONT, self.tid)
        self.stopped()
        os.pwrite(self.memory, before, at)
        registers = (ctypes.c_uint64 * 27)()
        ptrace(GETREGS, self.tid, registers)
        if registers[RIP] != at + 1:
            raise RuntimeError(f"stopped at {registers[RIP]:#x}, not at {function}")
        registers[RIP] = at
        ptrace(SETREGS, self.tid, registers)

    def step(self, count=1):
        ptrace_, wait, tid = libc.ptrace, os.waitpid, self.tid
        for _ in range(count):
            ptrace_(STEP, tid, None, None)
            wait(tid, WALL)

    def step_until(self, fact, most=50_000):
        """Instructions that it took until fact() was true."""
        for count in range(most):
            if fact():
                return count
            self.step()
        raise RuntimeError(f"not so within {most} instructions")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.tid, WALL)
        os.close(self.memory)

    def let_go(self):
        ptrace(0x11, self.tid)  # PTRACE_DETACH
        os.close(self.memory)
