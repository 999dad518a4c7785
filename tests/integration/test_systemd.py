#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# Label: long
"""The installed unit files keep a model over daemons' deaths and restarts, under a real systemd.

systemd runs as pid 1 of private namespaces, with a copy of /etc: the host is not changed, but for
empty cgroups, which are removed. Needs root and the right to make namespaces; skips without.
Sanitizers need what the units forbid, such as personality().
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from harness import BUILD, GPT, LIMIT, SOURCE, Group, check, config, done, until

SYSTEMD = "/lib/systemd/systemd"
KILLS, STEPS, WORLD = 10, 1500, 2
NAMESPACES = ["--mount", "--pid", "--uts", "--ipc", "--cgroup", "--net"]

# $1: our folder. What only a whole system has (basic.target and the like) is left out.
BOOT = r"""
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/etc /run/systemd/system/zerod.target.wants
cp -a /etc/. /run/etc
mount --bind /run/etc /etc
mkdir -p /etc/zerod
cp "$1"/prefix/share/zerod/zerod.conf /etc/zerod
cp "$1"/prefix/lib/systemd/system/* /run/systemd/system
systemd-sysusers "$1"/prefix/lib/sysusers.d/zerod.conf
for unit in zerod@.service zerod.target; do
    mkdir /run/systemd/system/$unit.d
    printf '[Unit]\nDefaultDependencies=no\n' >/run/systemd/system/$unit.d/test.conf
done
printf '[Service]\nRestartSec=20ms\nStandardError=append:%s/log\n' "$1" \
    >>/run/systemd/system/zerod@.service.d/test.conf
for rank in 0 1; do
    ln -s ../zerod@.service /run/systemd/system/zerod.target.wants/zerod@$rank.service
done
if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
    umount -R /sys/fs/cgroup 2>/dev/null || true
    mount -t tmpfs tmpfs /sys/fs/cgroup
    mkdir /sys/fs/cgroup/unified /sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
else
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
exec env -i container=zerod PATH=/usr/sbin:/usr/bin:/sbin:/bin """ + SYSTEMD + r""" --system \
    --unit=zerod.target --log-target=console --log-level=info --show-status=0
"""


def skip(reason):
    print(reason, file=sys.stderr)
    sys.exit(77)


class System:
    """A systemd of our own."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="zs-"))
        self.folder.chmod(0o755)
        self.prefix = self.folder / "prefix"
        subprocess.run(["cmake", "--install", BUILD, "--prefix", self.prefix], check=True,
                       stdout=subprocess.DEVNULL)
        self.log = open(self.folder / "systemd.log", "w")
        self.cgroups = {path: set(os.listdir(path)) for path in self.own_cgroups()}
        self.process = subprocess.Popen(
            ["unshare", *NAMESPACES, "--fork", "--kill-child", "bash", "-c", BOOT, "boot",
             self.folder], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.pid = None
        self.pid = until(self.find, what="systemd is there")

    @staticmethod
    def own_cgroups():
        """Where systemd makes its own, as far as it can be seen."""
        for line in open("/proc/self/cgroup"):
            _, kind, path = line.strip().split(":", 2)
            for root in {"": ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
                         "name=systemd": ["/sys/fs/cgroup/systemd"]}.get(kind, []):
                if os.path.exists(root + path + "/cgroup.procs"):
                    yield root + path

    def find(self):
        if self.process.poll() is not None:
            raise RuntimeError("systemd did not start:\n" + self.text())
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        pids = children.read_text().split()
        if not pids or os.readlink(f"/proc/{pids[0]}/exe") != os.path.realpath(SYSTEMD):
            return None
        return int(pids[0])

    def text(self):
        return (self.folder / "systemd.log").read_text(errors="replace")[-3000:]

    def command(self, *words):
        return ["nsenter", "-t", str(self.pid), *NAMESPACES, *map(str, words)]

    def ask(self, *words):
        run = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=60)
        return run.stdout.strip()

    def show(self, unit, name):
        return self.ask("systemctl", "show", unit, "--value", "-p", name)

    def trainer(self, rank, steps, settings):
        """As the user that the daemons run as."""
        runtime = "/run/zerod"
        libraries = next(self.prefix.rglob("libzeroclient.so")).parent
        return subprocess.Popen(
            self.command("setpriv", "--reuid=zerod", "--regid=zerod", "--clear-groups", "env",
                         f"LD_LIBRARY_PATH={libraries}", f"ZERO_SOCKET={runtime}/rank-{rank}.sock",
                         f"ZERO_CONFIG={settings}", f"RANK={rank}", f"WORLD_SIZE={WORLD}",
                         "OMP_NUM_THREADS=1", self.prefix / "lib/zerod/examples/gpt",
                         *arguments(self.folder / "book", steps)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)  # its namespace goes with it
        self.process.kill()
        self.process.wait()
        for path, before in self.cgroups.items():
            for name in set(os.listdir(path)) - before:
                if os.path.isdir(f"{path}/{name}"):
                    for root, folders, _ in os.walk(f"{path}/{name}", topdown=False):
                        until(lambda: remove(root), what=f"{root} is empty")
        self.log.close()
        shutil.rmtree(self.folder)


def remove(path):
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def arguments(book, steps):
    return ["--text", book, "--steps", steps, "--width", "16", "--heads", "2", "--seq", "16"]


def weights(text):
    found = re.search(r"weights sha256=(\w+) step=(\d+)", text)
    return found.groups() if found else None


def test_kills(system, settings, want):
    trainers = [system.trainer(rank, STEPS, settings) for rank in range(WORLD)]
    until(lambda: "step" in trainers[0].stderr.readline(), what="a step")
    for kill in range(KILLS):
        unit = f"zerod@{kill % WORLD}.service"
        before = system.show(unit, "MainPID")
        system.ask("systemctl", "kill", "--signal=KILL", unit)
        until(lambda: system.show(unit, "MainPID") not in ("0", before)
              and system.show(unit, "ActiveState") == "active", what="a successor")
    outputs = [trainer.communicate(timeout=LIMIT) for trainer in trainers]
    check(weights(outputs[0][0]) == want, f"{outputs[0]}, not {want}")
    check([t.returncode for t in trainers] == [0] * WORLD, f"trainers failed: {outputs}")
    restarts = sum(int(system.show(f"zerod@{r}", "NRestarts")) for r in range(WORLD))
    check(restarts == KILLS, f"{restarts} restarts")


def steps(system):
    """The step that each rank's model is at, 0 where there is no model."""
    text = system.ask(system.prefix / "bin/zeroctl", "--runtime-dir", "/run/zerod", "status",
                      "--json")
    try:
        return [rank.get("step", 0) for rank in json.loads(text)["ranks"]]
    except json.JSONDecodeError:
        return []


def lodged(system):
    return [int(system.show(f"zerod@{r}", "NFileDescriptorStore")) for r in range(WORLD)]


def test_restart_and_stop(system):
    held = lodged(system)
    check(min(held) >= 4, f"{held} fds are kept")
    pids = [system.show(f"zerod@{r}", "MainPID") for r in range(WORLD)]
    system.ask("systemctl", "restart", "zerod.target")
    until(lambda: steps(system) == [STEPS] * WORLD, what="both have their model again")
    check(not set(pids) & {system.show(f"zerod@{r}", "MainPID") for r in range(WORLD)},
          "not restarted")
    check(lodged(system) == held, f"after a restart {lodged(system)} fds are kept, not {held}")
    system.ask("systemctl", "stop", "zerod.target")
    until(lambda: system.ask("systemctl", "is-active", "zerod@0", "zerod@1")
          == "inactive\ninactive", what="stopped")
    version = int(system.ask("systemctl", "--version").split()[1])
    system.ask("systemctl", "start", "zerod.target")
    until(lambda: system.ask("systemctl", "is-active", "zerod@0", "zerod@1") == "active\nactive",
          what="started")
    expected = held if version >= 254 else [0] * WORLD
    check(lodged(system) == expected,
          f"after stop and start systemd {version} has {lodged(system)} fds, not {expected}")
    model = STEPS if version >= 254 else 0
    until(lambda: steps(system) == [model] * WORLD, what=f"both are at step {model}")


def test_wrong_rank(system):
    system.ask("systemctl", "start", "zerod@7")
    until(lambda: system.show("zerod@7", "ActiveState") == "failed", what="zerod@7 has failed")
    check(system.show("zerod@7", "ExecMainStatus") == "64", "its exit code is not 64")
    check(system.show("zerod@7", "NRestarts") == "0", "it was restarted")


def main():
    if os.geteuid() != 0:
        skip("needs root, for namespaces of its own")
    if not os.path.exists(SYSTEMD):
        skip("systemd is not installed")
    if subprocess.run(["unshare", *NAMESPACES, "--fork", "mount", "--make-rprivate", "/"],
                      capture_output=True).returncode != 0:
        skip("cannot make namespaces here")
    book = SOURCE / "tests" / "data" / "devils-dictionary.txt"
    alone = Group(WORLD, [GPT, *arguments(book, STEPS)], config(WORLD))
    check(alone.wait() == 0, alone.stderr())
    want = weights(alone.stdout())
    alone.close()
    system = System()
    try:
        shutil.copy(book, system.folder / "book")
        settings = system.folder / "config.json"
        settings.write_text(json.dumps(config(WORLD)))
        until(lambda: system.ask("systemctl", "is-active", "zerod@0", "zerod@1")
              == "active\nactive", what="the daemons are ready")
        test_kills(system, settings, want)
        test_restart_and_stop(system)
        test_wrong_rank(system)
    except Exception:
        print(system.text(), file=sys.stderr)
        raise
    finally:
        system.close()
    done()


if __name__ == "__main__":
    main()
