# SPDX-License-Identifier: MIT
"""A holder for daemons under test: keeps their fds by name, as systemd and zerorun do, and starts them
again with what it kept."""
import array
import ctypes
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from harness import BUILD, check, until

ZEROD = BUILD / "daemon" / "zerod"
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)


class Holder:
    """The daemons of a group, without zerorun. Each that ends is started again while
    `restarts`. options: of zerod besides, or a function of the rank that gives them."""

    def __init__(self, world, env=None, options=()):
        self.world, self.restarts, self.closing = world, True, False
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="zh-"))
        self.runtime = self.folder / "run"
        self.runtime.mkdir(mode=0o700)
        self.env = {**os.environ, **(env or {})}
        self.options = options if callable(options) else lambda rank: options
        self.log = open(self.folder / "log", "w+")
        self.kept = [{} for _ in range(world)]
        self.processes, self.pidfds = [None] * world, [None] * world
        self.ready = [0] * world
        self.deaths = 0
        self.codes = []
        self.lock = threading.Lock()
        self.sockets = [self.listen(r) for r in range(world)]
        for rank in range(world):
            self.start(rank)
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        until(lambda: all(self.ready), what="daemons are ready")

    def listen(self, rank):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind(str(self.runtime / f"rank-{rank}.notify"))
        return sock

    def start(self, rank):
        names, fds = [], []
        for name, fd in self.kept[rank].items():
            names.append(name)
            fds.append(fd)
        env = {**self.env, "NOTIFY_SOCKET": str(self.runtime / f"rank-{rank}.notify")}

        def prepare():
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            high = [os.dup2(fd, 500 + i) for i, fd in enumerate(fds)]
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i, inheritable=True)
                os.close(fd)

        command = [str(ZEROD), "--rank", str(rank), "--world", str(self.world),
                   "--runtime-dir", str(self.runtime), *map(str, self.options(rank))]
        if fds:  # the pid is known only afterwards: a shell puts it in
            command = ["/bin/sh", "-c", 'export LISTEN_PID=$$; exec "$0" "$@"', *command]
            env.update(LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=":".join(names))
        self.processes[rank] = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL,
                                                stdout=self.log, stderr=self.log, close_fds=False,
                                                preexec_fn=prepare)
        self.pidfds[rank] = os.pidfd_open(self.processes[rank].pid)

    def take(self, rank, sock):
        data, fds, _, _ = socket.recv_fds(sock, 4096, 16)
        fields = dict(line.split("=", 1) for line in data.decode().split("\n") if "=" in line)
        if fields.get("FDSTORE") == "1":
            for fd in fds:
                self.kept[rank][fields["FDNAME"]] = fd
            return
        if fields.get("FDSTOREREMOVE") == "1":
            fd = self.kept[rank].pop(fields["FDNAME"], None)
            if fd is not None:
                os.close(fd)
        if "READY" in fields:
            self.ready[rank] += 1
        for fd in fds:  # a barrier's
            os.close(fd)

    def watch(self):
        while not self.closing:
            dying = [fd for fd in self.pidfds if fd is not None]
            readable, _, _ = select.select(self.sockets + dying, [], [], 0.02)
            with self.lock:
                for sock in (r for r in readable if r in self.sockets):
                    try:
                        self.take(self.sockets.index(sock), sock)
                    except BlockingIOError:
                        pass
                for rank, process in enumerate(self.processes):
                    if process and process.poll() is not None:
                        self.codes.append(process.returncode)
                        self.processes[rank] = None
                        os.close(self.pidfds[rank])
                        self.pidfds[rank] = None
                        self.drain(rank)
                        if self.restarts:
                            self.start(rank)

    def drain(self, rank):
        """What a daemon said before it died counts."""
        while True:
            try:
                self.take(rank, self.sockets[rank])
            except BlockingIOError:
                return

    def kill(self, rank, how=signal.SIGKILL):
        with self.lock:
            process = self.processes[rank]
            if process is None:
                return False
            process.send_signal(how)
            self.deaths += 1
            return True

    def socket_of(self, rank):
        return str(self.runtime / f"rank-{rank}.sock")

    def text(self):
        self.log.flush()
        return (self.folder / "log").read_text(errors="replace")

    def close(self):
        self.restarts = False
        for process in self.processes:
            if process:
                process.terminate()
        end = time.monotonic() + 20
        for process in self.processes:
            if process:
                try:
                    process.wait(max(0.1, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.closing = True
        self.thread.join()
        for fd in self.pidfds:
            if fd is not None:
                os.close(fd)
        for kept in self.kept:
            for fd in kept.values():
                os.close(fd)
        for sock in self.sockets:
            sock.close()
        self.log.close()
        shutil.rmtree(self.folder)
