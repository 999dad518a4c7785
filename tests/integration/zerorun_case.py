# SPDX-License-Identifier: MIT
"""What the tests of zerorun share: runs whose daemon is a stand-in, and the proof that nothing is left.

Processes are found by a variable in their environment, which reaches those that left their session as
well.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

BUILD = os.environ.get("ZERO_BUILD", "build")
ZERORUN = os.path.join(BUILD, "deploy", "zerorun")
PYTHON = os.path.realpath(sys.executable)
LIMIT = 60  # seconds: far more than anything here takes


def wait_until(condition, what):
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("not within %d s: %s" % (LIMIT, what))
        time.sleep(0.01)


class ZerorunCase(unittest.TestCase):
    ZEROD = None  # the text of the daemon

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="zr-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.tag = ("ZERORUN_TEST=" + uuid.uuid4().hex).encode()
        name, value = self.tag.decode().split("=")
        self.zerod = self.write("zerod", self.ZEROD, 0o755)
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith("ZERO") and k not in ("OMP_NUM_THREADS", "NO_COLOR")}
        self.env.update({name: value, "ZEROD": self.zerod, "XDG_RUNTIME_DIR": self.folder})

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def path(self, name):
        return os.path.join(self.folder, name)

    def processes(self):
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/environ" % pid, "rb") as file:
                    if self.tag in file.read().split(b"\0"):
                        found.append(int(pid))
            except OSError:
                pass
        return found

    def start(self, *arguments, **options):
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen([ZERORUN, *arguments], env=self.env, text=True, **options)

    def run_zerorun(self, *arguments):
        """Runs to the end and checks that nothing is left behind."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=LIMIT)
        self.assert_nothing_left()
        return process.returncode, out, err

    def assert_nothing_left(self):
        wait_until(lambda: not self.processes(), "all processes of the run are gone")
        wait_until(lambda: not self.runtime_folders(), "the runtime folder is gone")

    def runtime_folders(self):
        return [name for name in os.listdir(self.folder) if name.startswith("zero-")]

    def group_of(self, process):
        """The supervising process: zerorun's only child."""
        with open("/proc/%d/task/%d/comm" % (process.pid, process.pid)) as file:
            self.assertEqual(file.read().strip(), "zerorun")
        for pid in self.processes():
            with open("/proc/%d/stat" % pid) as file:
                name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
            if name == "zerorun-group" and int(rest.split()[1]) == process.pid:
                return pid
        raise AssertionError("no zerorun-group below %d" % process.pid)

    def exists(self, *names):
        wait_until(lambda: all(os.path.exists(self.path(n)) for n in names),
                   "files %s" % (names,))

    def signal_daemon(self, rank, number):
        for pid in self.processes():
            try:
                with open("/proc/%d/cmdline" % pid, "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if b"--runtime-dir" in words and words[words.index(b"--rank") + 1] == rank.encode():
                os.kill(pid, number)
