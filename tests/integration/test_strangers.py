#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Who does not belong to a group cannot end it: whatever comes in on the sockets by which daemons meet,
before they meet again and while they do, a group whose daemons die goes on with the same bits.
"""
import array
import re
import signal
import socket
import struct
import subprocess
import threading

from harness import *

BOOK = SOURCE / "tests" / "data" / "devils-dictionary.txt"
ZEROD = BUILD / "daemon" / "zerod"
STEPS = 1500
PROTOCOL = 3  # shm_greet.h


def hello(protocol=PROTOCOL, kind=1, rank=2, world=3, more=b"\0" * 4096):
    return b"ZRPM" + struct.pack("<IIII", protocol, kind, rank, world) + more


MESSAGES = [b"G", b"GET / HTTP/1.0\r\n\r\n", b"\0" * 5000, hello(), hello(more=b""), hello(protocol=2),
            hello(protocol=99, more=b""), hello(rank=0, world=2), hello(rank=1, world=2, more=b"x" * 300),
            hello(kind=2, rank=1, world=2)]


def send(path, message, fds=()):
    """False: nobody is there, or it has enough."""
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        stranger.connect(str(path))
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        stranger.sendmsg([message], control)
        return True
    except OSError:
        return False
    finally:
        stranger.close()


class Run:
    def __init__(self):
        self.group = Group(2, [GPT, "--text", BOOK, "--steps", STEPS, "--width", 16, "--heads", 2])
        self.peers = [pathlib.Path(self.group.runtime) / f"rank-{r}.peer" for r in (0, 1)]
        until(lambda: self.step() >= 5, what="it trains")

    def ranks(self):
        now = status(self.group.runtime)
        return now["ranks"] if now else []

    def step(self):
        ranks = self.ranks()
        return min(r.get("step", 0) for r in ranks[:2]) if len(ranks) >= 2 else 0

    def over(self):
        return self.group.process.poll() is not None

    def kill(self, rank, what):
        """And waits for steps that are made after it."""
        until(lambda: self.step() > 0 or self.over(), what=what)
        ranks = self.ranks()
        check(len(ranks) >= 2, f"it is over too soon {what}: {self.group.stderr()[-2000:]}")
        if len(ranks) < 2:
            return
        was, pid = ranks[0].get("step", 0), ranks[rank]["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.step() > was or self.over(), what=what)

    def end(self, what):
        code = self.group.wait()
        found = re.findall(r"weights sha256=([0-9a-f]{64}) step=(\d+)", self.group.stdout())
        check(code == 0 and found, f"{what}: {code}: {self.group.stderr()[-3000:]}")
        log = self.group.stderr()
        self.group.close()
        return found[-1] if found else None, log


def before_they_meet(expected):
    """It lies in the queue of a socket that nobody looks at, until a daemon dies."""
    run = Run()
    for message in MESSAGES:
        for path in run.peers:
            send(path, message)
    run.kill(1, "after a message to each")
    send(run.peers[1], MESSAGES[1])
    run.kill(0, "after a message to rank 1")
    found, log = run.end("before")
    check(found == expected, f"before: {found}")
    check("turned away on rank-0.peer: " in log and log.count("turned away") < 40, f"before: {log[-3000:]}")


def while_they_meet(expected):
    run = Run()
    over = threading.Event()

    def flood():
        null = os.open("/dev/null", os.O_RDONLY)
        while not over.is_set():
            for i, message in enumerate(MESSAGES):
                for path in run.peers:
                    send(path, message, [null] * (i % 4))
            over.wait(0.002)
        os.close(null)

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    for rank in (1, 0, 1, 0):
        run.kill(rank, f"after a death of rank {rank}")
    over.set()
    thread.join()
    found, _ = run.end("while")
    check(found == expected, f"while: {found}")


def silent(expected):
    """More connections than a group may have ranks, that say nothing."""
    run = Run()
    strangers = []
    for path in run.peers:
        for _ in range(600):
            stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stranger.setblocking(False)
            try:
                stranger.connect(str(path))
                strangers.append(stranger)
            except OSError:
                stranger.close()
                break
    check(len(strangers) > 100, f"silent: {len(strangers)}")
    run.kill(1, "with silent ones")
    found, _ = run.end("silent")
    check(found == expected, f"silent: {found}")
    for stranger in strangers:
        stranger.close()


def foreign(expected):
    """A daemon of another world, that somebody starts in the folder, and its trainer."""
    run = Run()
    daemon = subprocess.Popen([ZEROD, "-d", run.group.runtime, "-r", "2", "-w", "3"],
                              stderr=subprocess.PIPE, text=True)
    until(lambda: (pathlib.Path(run.group.runtime) / "rank-2.sock").exists(), what="its socket")
    text = config(3, stage=3)
    text["zerod"] = {"wait_timeout_seconds": 5}
    path = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    (path / "config.json").write_text(json.dumps(text))
    trainer = subprocess.Popen([PROBE, "-c", path / "config.json", "--steps", "1", "-q"],
                               env={**os.environ, "ZERO_SOCKET": f"{run.group.runtime}/rank-2.sock",
                                    "RANK": "2", "WORLD_SIZE": "3"},
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for rank in (1, 0):
        run.kill(rank, f"beside a foreign daemon, after a death of rank {rank}")
    said, _ = trainer.communicate(timeout=LIMIT)
    check(trainer.returncode != 0, f"foreign trainer: {said}")
    daemon.terminate()
    daemon.communicate(timeout=LIMIT)
    shutil.rmtree(path)
    found, log = run.end("foreign")
    check(found == expected and "a daemon that says it is rank 2 of 3" in log, f"foreign: {found} {log[-2000:]}")


def main():
    expected, _ = Run().end("undisturbed")
    for part in (before_they_meet, while_they_meet, silent, foreign):
        begun = time.monotonic()
        part(expected)
        print(f"{part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
    done()


if __name__ == "__main__":
    main()
