# SPDX-License-Identifier: MIT
"""Trainers of a group that a Holder keeps: one a rank, started again when it fails."""
import json
import os
import subprocess


class Trainers:

    def __init__(self, holder, command, settings):
        self.holder, self.folder = holder, holder.folder
        self.command = [str(part) for part in command]
        self.settings = self.folder / "config.json"
        self.settings.write_text(json.dumps(settings))
        self.processes = [None] * holder.world
        self.done = [False] * holder.world
        self.lines = [0] * holder.world
        self.deaths, self.starts = 0, 0
        self.fails = []
        self.readers = []
        for rank in range(holder.world):
            self.path("out", rank).touch()
            self.readers.append(open(self.path("out", rank), "rb"))

    def path(self, what, rank):
        return self.folder / f"trainer-{rank}.{what}"

    def start(self, rank):
        env = {**os.environ, "ZERO_SOCKET": self.holder.socket_of(rank), "RANK": str(rank),
               "WORLD_SIZE": str(self.holder.world), "ZERO_CONFIG": str(self.settings),
               "OMP_NUM_THREADS": "1"}
        self.starts += 1
        with open(self.path("out", rank), "ab") as out, open(self.path("err", rank), "wb") as err:
            self.processes[rank] = subprocess.Popen(self.command, env=env, stdout=out, stderr=err,
                                                    stdin=subprocess.DEVNULL)

    def look(self):
        """Starts what is not there, collects what ended; true when all are done."""
        for rank, process in enumerate(self.processes):
            if self.done[rank]:
                continue
            if process is None:
                self.start(rank)
            elif process.poll() is not None:
                self.processes[rank] = None
                if process.returncode == 0:
                    self.done[rank] = True
                elif process.returncode > 0:
                    self.fails.append(self.path("err", rank).read_text(errors="replace")[-300:])
        return all(self.done)

    def said(self, rank):
        """Lines that this rank's trainers have written."""
        self.lines[rank] += self.readers[rank].read().count(b"\n")
        return self.lines[rank]

    def text(self, rank):
        return self.path("out", rank).read_text()

    def kill(self, rank):
        process = self.processes[rank]
        if process is None or process.poll() is not None:
            return
        process.kill()
        self.deaths += 1

    def close(self):
        for process in self.processes:
            if process:
                process.kill()
                process.wait()
        for reader in self.readers:
            reader.close()
