#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""However a run of zerorun ends, its exit code says why and no process, socket or file stays.

The daemon is a stand-in that binds the sockets, says READY=1 and waits for SIGTERM, so that every
kind of end can be provoked.
"""
import fcntl
import json
import os
import pty
import select
import signal
import socket
import subprocess
import time
import unittest

from zerorun_case import LIMIT, PYTHON, ZERORUN, ZerorunCase, wait_until

FAKE_ZEROD = """#!%s -S
import os, signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
option = dict(zip(sys.argv[1::2], sys.argv[2::2]))
rank, folder = option["--rank"], option["--runtime-dir"]
mode = os.environ.get("FAKE_ZEROD_" + rank, "")
keep = []
for name, kind in (("sock", socket.SOCK_SEQPACKET), ("control", socket.SOCK_STREAM)):
    s = socket.socket(socket.AF_UNIX, kind)
    s.bind(folder + "/rank-" + rank + "." + name)
    s.listen()
    keep.append(s)
print("up with world", option["--world"], flush=True)
if mode == "die early":
    print("no memory for arena master", file=sys.stderr, flush=True)
    sys.exit(5)
if mode != "silent":
    n = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    n.sendto(b"STATUS=fine\\nREADY=1\\n", os.environ["NOTIFY_SOCKET"])
signal.sigwait([signal.SIGUSR2 if mode == "deaf" else signal.SIGTERM])
print("down", flush=True)
sys.exit(6 if mode == "end badly" else 0)
""" % PYTHON


class Zerorun(ZerorunCase):
    ZEROD = FAKE_ZEROD

    # ---- what children get, what users see --------------------------------------------------

    def test_environment(self):
        self.env["NOTIFY_SOCKET"] = "/nowhere"
        code, out, err = self.run_zerorun(
            "-n", "2", "--", "sh", "-c", "env | sed \"s/^/$RANK:/\"")
        self.assertEqual(code, 0, err)
        lines = out.splitlines()
        ports = set()
        for rank in "01":
            mine = dict(line.split(":", 1)[1].split("=", 1) for line in lines
                        if line.startswith("[trainer %s] %s:" % (rank, rank)) and "=" in line)
            self.assertEqual(
                [mine.get(k) for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                       "MASTER_ADDR", "RESTART_COUNT", "OMP_NUM_THREADS")],
                [rank, rank, "2", "2", "127.0.0.1", "0", "1"])
            folder = mine["ZERO_RUNTIME_DIR"]
            self.assertIn("zerorun: runtime folder %s\n" % folder, err)
            self.assertEqual(mine["ZERO_SOCKET"], "%s/rank-%s.sock" % (folder, rank))
            self.assertNotIn("NOTIFY_SOCKET", mine)
            self.assertNotIn("ZERO_CONFIG", mine)
            ports.add(int(mine["MASTER_PORT"]))
        self.assertEqual(len(ports), 1)
        self.assertIn("OMP_NUM_THREADS", err)
        self.assertIn("[zerod 1] up with world 2\n", err)
        self.assertIn("[zerod 0] down\n", err)

    def test_streams_and_partial_lines(self):
        code, out, err = self.run_zerorun(
            "-n", "1", "--", "sh", "-c", "echo one; printf two; printf three >&2")
        self.assertEqual((code, out), (0, "[trainer 0] one\n[trainer 0] two\n"))
        self.assertIn("[trainer 0] three\n", err)

    def test_no_prefix_keeps_every_byte(self):
        text = "".join("line %d of many\n" % i for i in range(200000))
        self.write("text", text)
        code, out, _ = self.run_zerorun("-n", "1", "--no-prefix", "--", "cat", self.path("text"))
        self.assertEqual(code, 0)
        self.assertTrue(out == text, "the output differs from what the trainer wrote")

    def test_long_line_is_broken_and_complete(self):
        self.write("text", "x" * 150000 + "\nend\n")
        code, out, _ = self.run_zerorun("-n", "1", "--no-prefix", "--", "cat", self.path("text"))
        self.assertEqual((code, out.count("x"), out.splitlines()[-1]), (0, 150000, "end"))

    def read_terminal(self, *arguments, on_sight=()):
        """on_sight: pairs (text, path); each path is made once its text is on the terminal."""
        master, slave = pty.openpty()
        process = self.start(*arguments, stdout=slave, stderr=slave)
        os.close(slave)
        seen = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # EIO: the last writer has gone
                piece = b""
            if not piece:
                break
            seen += piece
            for text, path in on_sight:
                if text in seen:
                    open(path, "w").close()
        os.close(master)
        self.assertEqual(process.wait(timeout=LIMIT), 0)
        self.assert_nothing_left()
        return seen.decode()

    def test_terminal_shows_progress_and_colour(self):
        script = "echo t=$ZERO_TERMINAL; printf 'step 1\\rstep 2\\rend\\n'"
        seen = self.read_terminal("-n", "1", "--", "sh", "-c", script)
        name = "\033[32m[trainer 0]\033[0m "
        self.assertIn(name + "t=1\r\n", seen)
        self.assertIn(name + "step 1\r" + name + "step 2\r" + name + "end\r\n", seen)
        self.env["NO_COLOR"] = "1"
        seen = self.read_terminal("-n", "1", "--", "sh", "-c", "printf '\\rstep 1\\rstep 2\\n'")
        self.assertNotIn("\033[3", seen)
        self.assertIn("[trainer 0] step 1\r[trainer 0] step 2\r\n", seen)

    def test_progress_line_gives_way_to_other_lines(self):
        shown, other = self.path("shown"), self.path("other")
        script = ("await() { while [ ! -e $1 ]; do sleep 0.01; done; }; if [ $RANK = 0 ]; then "
                  "printf 'step 1\\r'; await %s; printf 'step 2\\n'; "
                  "else await %s; echo other; fi" % (other, shown))
        seen = self.read_terminal("-n", "2", "--", "sh", "-c", script,
                                  on_sight=((b"step 1", shown), (b"other", other)))
        self.assertRegex(seen, r"step 1\r\r\x1b\[K\x1b\[33m\[trainer 1\]\x1b\[0m other\r\n")

    # ---- exit codes -------------------------------------------------------------------------

    def test_exit_codes_of_trainers(self):
        for script, expected in (("exit 0", 0), ("exit 7", 7), ("exit 63", 63), ("exit 64", 72),
                                 ("exit 255", 72), ("kill -9 $$", 72)):
            code, _, err = self.run_zerorun("-n", "1", "--", "sh", "-c", script)
            self.assertEqual(code, expected, err)
            if expected != 0:
                self.assertIn("zerorun: trainer 0 ", err)

    def test_one_failure_ends_the_others(self):
        code, _, err = self.run_zerorun(
            "-n", "3", "--", "sh", "-c", "[ $RANK = 1 ] && exit 9; exec sleep 1000")
        self.assertEqual(code, 9, err)
        self.assertIn("trainer 1 ended with exit code 9", err)

    def test_restarts(self):
        script = "echo run $RESTART_COUNT; [ $RESTART_COUNT = 2 ] || kill -9 $$"
        code, out, err = self.run_zerorun(
            "-n", "2", "--max-restarts", "2", "--", "sh", "-c", script)
        self.assertEqual(code, 0, err)
        for rank in (0, 1):
            self.assertEqual([line[-1] for line in out.splitlines()
                              if line.startswith("[trainer %d]" % rank)], ["0", "1", "2"])
        self.assertIn("trainer 1 was killed by signal 9 (Killed): restart 2 of 2 in 0.2 s", err)
        code, out, err = self.run_zerorun(
            "-n", "1", "--max-restarts", "1", "--", "sh", "-c", "exit $((3 + RESTART_COUNT))")
        self.assertEqual(code, 4, err)

    def test_trainer_program_that_is_away_for_a_moment(self):
        program = self.write("train", """#!/bin/sh
if [ $RANK$RESTART_COUNT = 00 ]; then
    until [ -e "$0.up" ]; do sleep 0.01; done; mv "$0" "$0.away"; kill -9 $$
fi
[ $RANK = 0 ] || { touch "$0.up"; until [ -e "$0.away" ]; do sleep 0.01; done; sleep 0.3; mv "$0.away" "$0"; }
""", 0o755)
        code, _, err = self.run_zerorun("-n", "2", "--max-restarts", "9", "--", program)
        self.assertEqual(code, 0, err)
        self.assertIn("trainer 0 could not be started: restart 2 of 9 in 0.2 s", err)

    def test_restarts_of_what_fails_at_once_get_rarer(self):
        start = time.monotonic()
        code, out, err = self.run_zerorun(
            "-n", "1", "--max-restarts", "1000", "--no-prefix", "--", "sh", "-c",
            "echo run; [ $RESTART_COUNT = 5 ] || exit 3")
        self.assertEqual((code, out), (0, 6 * "run\n"), err)
        for count, delay in enumerate(("0.1", "0.2", "0.4", "0.8", "1.6"), 1):
            self.assertIn("restart %d of 1000 in %s s\n" % (count, delay), err)
        self.assertGreaterEqual(time.monotonic() - start, 0.1 + 0.2 + 0.4 + 0.8 + 1.6)

    def test_longest_wait_before_a_restart_can_be_set(self):
        code, _, err = self.run_zerorun(
            "-n", "1", "--max-restarts", "100", "--restart-delay", "0", "--", "sh", "-c",
            "[ $RESTART_COUNT = 100 ] || exit 3")
        self.assertEqual(code, 0, err)
        self.assertEqual(err.count(" of 100 in 0.0 s"), 100)

    def test_restart_of_a_trainer_that_had_lived_is_at_once(self):
        code, _, err = self.run_zerorun(
            "-n", "1", "--max-restarts", "3", "--", "sh", "-c",
            "[ $RESTART_COUNT != 1 ] || sleep 10.1; [ $RESTART_COUNT = 3 ] || exit 3")
        self.assertEqual(code, 0, err)
        for count, delay in ((1, "0.1"), (2, "0.0"), (3, "0.1")):
            self.assertIn("restart %d of 3 in %s s\n" % (count, delay), err)

    def test_trainer_that_waits_for_its_restart_is_not_started_by_an_ending_group(self):
        process = self.start("-n", "1", "--max-restarts", "1000", "--", "sh", "-c",
                             "echo run; exit 3")
        while "restart 6 of 1000" not in process.stderr.readline():  # it waits for 3.2 s
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 143, err)
        self.assertEqual(out.count("run"), 6, err)
        self.assert_nothing_left()

    def test_daemon_that_dies_before_it_is_ready(self):
        self.env["FAKE_ZEROD_1"] = "die early"
        code, out, err = self.run_zerorun("-n", "2", "--", "echo", "started")
        self.assertEqual((code, out), (71, ""), err)
        self.assertIn("zerod 1 ended with exit code 5 before it was ready", err)
        self.assertIn("the last lines of zerod 1:\nno memory for arena master\n", err)

    def test_daemon_that_does_not_get_ready(self):
        self.env["FAKE_ZEROD_1"] = "silent"
        code, out, err = self.run_zerorun(
            "-n", "2", "--ready-timeout", "1", "--", "echo", "started")
        self.assertEqual((code, out), (71, ""), err)
        self.assertIn("zerod 1 did not get ready within 1 s", err)
        self.assertIn("the last lines of zerod 1:\nup with world 2\n", err)
        self.assertNotIn("zerod 0 did not", err)

    def test_death_of_a_daemon(self):
        process = self.start("-n", "2", "--max-daemon-restarts", "0", "--", "sh", "-c",
                             ": >%s.$RANK; exec sleep 1000" % self.path("up"))
        self.exists("up.0", "up.1")
        self.signal_daemon("1", signal.SIGKILL)
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 70, err)
        self.assertIn("zerod 1 was killed by signal 9 (Killed) while the group was running", err)
        self.assert_nothing_left()

    def test_daemon_that_is_told_to_end_while_trainers_run(self):
        process = self.start("-n", "2", "--", "sh", "-c", ": >%s.$RANK; exec sleep 1000"
                             % self.path("up"))
        self.exists("up.0", "up.1")
        self.signal_daemon("1", signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 75, err)
        self.assertIn("zerod 1 was told to end: ending the group", err)
        self.assert_nothing_left()

    def test_too_few_open_files_are_allowed(self):
        command = ["sh", "-c", "ulimit -n 150; exec \"$@\"", "sh", ZERORUN, "-n", "8", "--", "true"]
        run = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(run.returncode, 74, run.stderr)
        self.assertIn("8 ranks need 304 open files and 150 are allowed: raise", run.stderr)

    def test_trainer_that_fails_because_its_daemon_died(self):
        script = ("import os, socket, sys; s = socket.socket(socket.AF_UNIX, "
                  "socket.SOCK_SEQPACKET); s.connect(os.environ['ZERO_SOCKET']); "
                  "open(%r, 'w'); s.recv(1); sys.exit(3)" % self.path("up"))
        for restarts, expected in (("0", 70), ("1", 1)):  # trainers can outlive what is restarted
            process = self.start("-n", "1", "--max-daemon-restarts", restarts, "--", PYTHON, "-S",
                                 "-c", script)
            self.exists("up")
            os.unlink(self.path("up"))
            self.signal_daemon("0", signal.SIGKILL)
            _, err = process.communicate(timeout=LIMIT)
            self.assertEqual(process.returncode, expected, err)
            self.assert_nothing_left()

    def test_daemon_that_ends_badly(self):
        self.env["FAKE_ZEROD_0"] = "end badly"
        code, _, err = self.run_zerorun("-n", "1", "--", "true")
        self.assertEqual(code, 70, err)
        self.assertIn("zerod 0 ended with exit code 6 while the group was ending", err)

    def test_wrong_command_lines(self):
        for arguments, text in (
                ((), "say with -n"), (("-n", "0", "--", "true"), "from 1 to 128, not \"0\""),
                (("-n", "2"), "name the trainer"), (("-n", "x", "--", "true"), "whole number"),
                (("-n", "129", "--", "true"), "from 1 to 128, not \"129\""),
                (("-n", "1", "--grace", "-1"), "--grace must be a whole number from 0"),
                (("-n", "1", "-o", "novalue", "--", "true"), "path.to.key=value"),
                (("-n", "1", "-o", "a..b=1", "--", "true"), "path.to.key=value"),
                (("-n", "1", "--daemons-only", "--", "true"), "leave \"true\" out"),
                (("-n", "1", "--daemons-only", "--max-restarts", "1"), "no meaning"),
                (("-n", "1", "--daemons-only", "-o", "a=1"), "needs a --config"),
                (("-n", "1", "--", "no-such-program"), "PATH"),
                (("-n", "1", "--", "/etc/passwd"), "not a program"),
                (("-n", "1", "--zerod", "/no/zerod", "--", "true"), "/no/zerod"),
                (("-n", "1", "--config", "/no/file", "--", "true"), "/no/file")):
            code, out, err = self.run_zerorun(*arguments)
            self.assertEqual((code, out), (64, ""), (arguments, err))
            self.assertIn(text, err)
        code, out, _ = self.run_zerorun("--version")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"^zerorun \d+\.\d+\.\d+\n$")

    def test_program_that_cannot_be_executed(self):
        garbage = self.write("garbage", "\x01\x02\x03", 0o755)
        code, _, err = self.run_zerorun("-n", "2", "--", garbage)
        self.assertEqual(code, 74, err)
        self.assertIn("cannot start trainer 0 (%s): Exec format error" % garbage, err)

    # ---- signals ----------------------------------------------------------------------------

    TRAINER = """
import os, signal, subprocess, sys, time
def got(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    if number != signal.SIGUSR1 and sys.argv[2] == "obey":
        sys.exit(0)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, got)
if len(sys.argv) > 3:  # a child that leaves the session, and one that leaves its parent as well
    script = "setsid sh -c 'echo >%s.a.$RANK; exec sleep 1000' & sleep 1000" % sys.argv[3]
    subprocess.Popen(["setsid", "sh", "-c", script])
    subprocess.Popen(["sh", "-c", "setsid sh -c 'echo >%s.b.$RANK; exec sleep 1000' &"
                      % sys.argv[3]])
open(sys.argv[1] + "." + os.environ["RANK"], "w")
while True:
    time.sleep(0.1)  # not pause(): a signal just before it would be noticed with the next one
"""

    def start_pair(self, behaviour, *options, **more):
        script = self.write("trainer.py", self.TRAINER)
        process = self.start("-n", "2", *options, "--", PYTHON, "-S", script, self.path("up"),
                             behaviour, self.path("child"), **more)
        self.exists("up.0", "up.1", "child.a.0", "child.a.1", "child.b.0", "child.b.1")
        return process

    def test_signals_are_passed_on(self):
        for number, name in ((signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM"),
                             (signal.SIGHUP, "SIGHUP")):
            for stale in ("up.0", "up.1"):
                if os.path.exists(self.path(stale)):
                    os.unlink(self.path(stale))
            process = self.start_pair("obey", "--grace", "1000")
            process.send_signal(number)
            out, err = process.communicate(timeout=LIMIT)
            self.assertEqual(process.returncode, 128 + number, err)
            self.assertEqual(sorted(out.splitlines()),
                             ["[trainer 0] got " + name, "[trainer 1] got " + name])
            self.assertIn("[zerod 1] down", err)
            self.assert_nothing_left()

    def test_a_shell_in_the_background_does_not_make_trainers_deaf(self):
        command = " ".join((ZERORUN, "-n", "1", "--no-prefix", "--", "sh", "-c",
                            "'grep SigIgn /proc/self/status; echo >%s; exec sleep 1000'"
                            % self.path("up.0")))
        shell = subprocess.Popen(["sh", "-c", "trap '' QUIT PIPE; %s & echo $!; wait $!" % command],
                                 env=self.env, text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL)
        pid = int(shell.stdout.readline())
        ignored = int(shell.stdout.readline().split()[1], 16)
        self.assertEqual([number.name for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE)
                          if ignored >> (number - 1) & 1], [])
        self.exists("up.0")
        os.kill(pid, signal.SIGINT)  # passed on: sleep ends by it
        shell.communicate(timeout=LIMIT)
        self.assertEqual(shell.returncode, 128 + signal.SIGINT)
        self.assert_nothing_left()

    def test_nohup(self):
        process = self.start(
            "-n", "1", "--", "sh", "-c", "grep SigIgn /proc/self/status; echo >%s; until [ -e %s ]; "
            "do sleep 0.01; done" % (self.path("up.0"), self.path("on")),
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.exists("up.0")
        for pid in (process.pid, self.group_of(process)):
            os.kill(pid, signal.SIGHUP)
        open(self.path("on"), "w").close()
        out, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 0, err)
        self.assertTrue(int(out.split()[-1], 16) >> (signal.SIGHUP - 1) & 1, out)
        self.assert_nothing_left()

    def test_user_signal_does_not_end_the_run(self):
        process = self.start_pair("obey", "--grace", "1000")
        process.send_signal(signal.SIGUSR1)
        self.assertIn("got SIGUSR1", process.stdout.readline())
        self.assertIn("got SIGUSR1", process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 143)
        self.assert_nothing_left()

    def test_stubborn_trainers_are_killed_after_the_grace(self):
        process = self.start_pair("ignore", "--grace", "1")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 143)
        self.assertIn("[trainer 1] got SIGTERM", out)
        self.assertIn("trainer 1 does not end: killing it", err)
        self.assert_nothing_left()

    def test_second_signal_ends_the_grace(self):
        self.env["FAKE_ZEROD_1"] = "deaf"
        process = self.start_pair("ignore", "--grace", "10000")
        process.send_signal(signal.SIGINT)
        self.assertIn("got SIGINT", process.stdout.readline())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 130)
        self.assert_nothing_left()

    def test_stopped_processes_end_too(self):
        process = self.start_pair("obey", "--grace", "1000")
        group = self.group_of(process)
        for pid in self.processes():
            if pid not in (process.pid, group):
                os.kill(pid, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 143)
        self.assert_nothing_left()

    def test_stopped_group_process_ends_in_order(self):
        process = self.start_pair("obey", "--grace", "1000")
        os.kill(self.group_of(process), signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 143, err)
        self.assertIn("[trainer 0] got SIGTERM", out)
        self.assertIn("[zerod 1] down", err)
        self.assert_nothing_left()

    # A trainer that stops the group's process as soon as it has passed the signal on.
    STOPPER = """
import os, signal, time
group = os.getppid()
def got(number, frame):
    os.kill(group, signal.SIGSTOP)
    open(%r, "w")
signal.signal(signal.SIGTERM, got)
open(%r, "w")
while True:
    time.sleep(0.1)
"""

    def start_stopper(self, *options):
        script = self.write("stopper.py", self.STOPPER % (self.path("stopped"), self.path("up")))
        process = self.start("-n", "1", *options, "--", PYTHON, "-S", script)
        self.exists("up")
        process.send_signal(signal.SIGTERM)
        self.exists("stopped")
        return process

    def test_group_process_that_does_not_end_is_killed(self):
        process = self.start_stopper("--grace", "1", "--runtime-dir", self.path("given"))
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 143, err)
        self.assertRegex(err, r"Terminated: its group process \d+ did not end the group within "
                         r"[\d.]+ s: killing everything")
        self.assert_nothing_left()
        self.assertFalse(os.path.exists(self.path("given")))

    def test_second_signal_wakes_a_stopped_group_process(self):
        process = self.start_stopper("--grace", "10000")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 143, err)
        self.assertIn("trainer 0 has not ended yet, and a second signal came: killing it", err)
        self.assert_nothing_left()

    # ---- sudden ends ------------------------------------------------------------------------

    def test_kill_of_the_front_process(self):
        process = self.start_pair("ignore", "--grace", "1000")
        process.kill()
        process.communicate(timeout=LIMIT)
        self.assert_nothing_left()

    def test_kill_of_the_group_process(self):
        process = self.start_pair("ignore", "--grace", "1000")
        os.kill(self.group_of(process), signal.SIGKILL)
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 74, err)
        self.assertIn("group process was killed by signal 9", err)
        self.assert_nothing_left()

    def test_kill_of_both_leaves_a_folder_that_can_be_used_again(self):
        given = self.path("given")
        process = self.start("-n", "2", "--runtime-dir", given, "--", "sh", "-c",
                             ": >%s.$RANK; exec sleep 1000" % self.path("up"))
        self.exists("up.0", "up.1")
        group = self.group_of(process)
        os.kill(process.pid, signal.SIGSTOP)  # it does not see the other one's end
        os.kill(group, signal.SIGKILL)
        process.kill()
        process.communicate(timeout=LIMIT)
        wait_until(lambda: not self.processes(), "daemons and trainers died with their parents")
        self.assertIn("rank-0.sock", os.listdir(given))
        code, out, err = self.run_zerorun("-n", "1", "--runtime-dir", given, "--", "ls", given)
        self.assertEqual(code, 0, err)
        self.assertNotIn("rank-1.sock", out)
        self.assertEqual(os.listdir(given), [])  # it was there before this run

    def test_kill_while_nobody_reads_the_output(self):
        process = self.start("-n", "1", "--", "sh", "-c", ": >%s; exec yes" % self.path("up"))
        self.exists("up")
        size = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ)
        wait_until(lambda: select.select([process.stdout], [], [], 0)[0], "output")
        self.assertGreater(size, 0)
        process.kill()
        self.assert_nothing_left()
        process.communicate(timeout=LIMIT)

    def test_reader_that_goes_away(self):
        process = self.start("-n", "1", "--", "yes", stderr=subprocess.DEVNULL)
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=LIMIT), 128 + signal.SIGPIPE)
        self.assert_nothing_left()

    def test_stdout_on_a_full_disk(self):
        for trainer in (("echo", "result"), ("yes",), ("sh", "-c", "echo result; exit 3")):
            with open("/dev/full", "w") as full:
                process = self.start("-n", "1", "--", *trainer, stdout=full)
                _, err = process.communicate(timeout=LIMIT)
            self.assertEqual(err.count("cannot write to stdout: No space left on device"), 1, err)
            self.assertIn(process.returncode, (74, 3) if "exit 3" in trainer[-1] else (74,), err)
            self.assertNotIn("Broken pipe", err)
            self.assert_nothing_left()

    def test_stdout_that_is_closed(self):
        script = 'exec "$0" -n 1 -- sh -c ": >%s" >&-' % self.path("started")
        result = subprocess.run(["sh", "-c", script, ZERORUN], env=self.env, text=True,
                                stderr=subprocess.PIPE, timeout=LIMIT)
        self.assertEqual(result.returncode, 74, result.stderr)
        self.assertIn("stdout is closed", result.stderr)
        self.assertFalse(os.path.exists(self.path("started")))
        self.assert_nothing_left()

    def test_other_standard_files_may_be_closed(self):
        script = 'exec "$0" -n 1 --no-prefix -- echo result <&- 2>&-'
        result = subprocess.run(["sh", "-c", script, ZERORUN], env=self.env, text=True,
                                stdout=subprocess.PIPE, timeout=LIMIT)
        self.assertEqual((result.returncode, result.stdout), (0, "result\n"))

    def test_reader_that_has_gone_before_the_last_line(self):
        os.mkfifo(self.path("go"))
        process = self.start("-n", "1", "--", "sh", "-c", "read x <%s; echo result"
                             % self.path("go"), stderr=subprocess.DEVNULL)
        process.stdout.close()
        with open(self.path("go"), "w") as go:
            go.write("go\n")
        self.assertEqual(process.wait(timeout=LIMIT), 128 + signal.SIGPIPE)
        self.assert_nothing_left()

    # ---- runtime folder ---------------------------------------------------------------------

    def test_folder_in_use(self):
        given = self.path("given")
        process = self.start("-n", "1", "--runtime-dir", given, "--daemons-only")
        process.stdout.readline()
        other = self.start("-n", "1", "--runtime-dir", given, "--", "true")
        _, err = other.communicate(timeout=LIMIT)
        self.assertEqual(other.returncode, 73)
        self.assertIn("zerorun process %d runs in %s" % (process.pid, given), err)
        process.terminate()
        process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 0)
        self.assert_nothing_left()
        self.assertFalse(os.path.exists(given))  # made by the run

    def test_folder_with_live_and_with_dead_sockets(self):
        given = self.path("given")
        os.mkdir(given, 0o700)
        self.write("given/rank-0.peer", "")
        self.write("given/notes", "")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(given + "/rank-7.control")
        listener.listen()
        code, _, err = self.run_zerorun("-n", "1", "--runtime-dir", given, "--", "true")
        self.assertEqual(code, 73)
        self.assertIn("a daemon listens on %s/rank-7.control" % given, err)
        self.assertIn("rank-7.control", os.listdir(given))
        listener.close()
        code, _, err = self.run_zerorun("-n", "1", "--runtime-dir", given, "--", "true")
        self.assertEqual(code, 0, err)
        self.assertEqual(os.listdir(given), ["notes"])

    def test_folders_that_cannot_be_used(self):
        self.write("file", "")
        os.mkdir(self.path("open"))
        os.chmod(self.path("open"), 0o770)
        long = self.path("x" * (107 - len("/rank-0.control") - len(self.folder)))
        for folder, text in ((self.path("file"), "is not a folder"),
                             (self.path("no/parent"), "No such file"),
                             (self.path("open"), "chmod 700"), (long, "too long")):
            code, _, err = self.run_zerorun("-n", "1", "--runtime-dir", folder, "--", "true")
            self.assertEqual(code, 73, err)
            self.assertIn(text, err)
            self.assertIn(folder, err)
        self.assertFalse(os.path.exists(long))
        os.mkdir(self.path("sticky"))
        os.chmod(self.path("sticky"), 0o1777)
        foreign = "/tmp" if os.geteuid() == 0 else "/usr"
        for folder in (self.path("sticky"), foreign):
            code, _, err = self.run_zerorun("-n", "1", "--runtime-dir", folder, "--", "true")
            self.assertEqual(code, 73, err)
            self.assertIn("mkdir -m 700 DIR", err)
            self.assertNotIn("chmod", err)
        if os.geteuid() != 0:
            os.mkdir(self.path("closed"), 0o500)
            code, _, err = self.run_zerorun(
                "-n", "1", "--runtime-dir", self.path("closed"), "--", "true")
            self.assertEqual(code, 73)
            self.assertIn("not writable", err)
        for mode in (0o755, 0o750, 0o700):  # others may look, not write
            os.chmod(self.path("open"), mode)
            code, _, err = self.run_zerorun("-n", "1", "--runtime-dir", self.path("open"), "--", "true")
            self.assertEqual(code, 0, err)
        code, _, err = self.run_zerorun("-n", "1", "--runtime-dir", long[:-1], "--", "true")
        self.assertEqual(code, 0, err)

    def test_fresh_folder_is_private_and_removed_with_what_trainers_left(self):
        code, out, _ = self.run_zerorun(
            "-n", "1", "--no-prefix", "--", "sh", "-c",
            "stat -c %a $ZERO_RUNTIME_DIR; mkdir -p $ZERO_RUNTIME_DIR/a/b; "
            "echo x >$ZERO_RUNTIME_DIR/a/b/c")
        self.assertEqual((code, out), (0, "700\n"))

    # ---- daemons only -----------------------------------------------------------------------

    def test_daemons_only(self):
        config = self.write("base.json", self.BASE)
        process = self.start("-n", "2", "--daemons-only", "--config", config,
                             "-o", "zero_optimization.stage=2")
        lines = [process.stdout.readline() for _ in range(2)]
        for rank, line in enumerate(lines):
            words = dict(word.split("=", 1) for word in line.split())
            self.assertEqual((words["RANK"], words["WORLD_SIZE"]), (str(rank), "2"))
            with open(words["ZERO_CONFIG"]) as file:
                self.assertEqual(json.load(file)["zero_optimization"], {"stage": 2})
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            client.connect(words["ZERO_SOCKET"])
            client.close()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 0)
        self.assert_nothing_left()

    def test_daemons_that_are_shut_down(self):
        process = self.start("-n", "2", "--daemons-only")
        process.stdout.readline()
        self.signal_daemon("0", signal.SIGTERM)
        self.signal_daemon("1", signal.SIGTERM)
        process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 0)
        self.assert_nothing_left()

    # ---- config -----------------------------------------------------------------------------

    BASE = """{ "train_batch_size": 16,

  "optimizer": { "type": "AdamW",
    "params": { "lr": 3e-4,
      "betas": [
        0.9, 0.999 ],
      "eps": 1e-08 } },
  "tr\\u0061in_micro_batch_size_per_gpu": 8,
  "bf16": {}, "autotuning": { "odd \\"é\\\\": null, "big": 12345678901234567890, "none": {
  } }
}
"""

    def merged(self, base, *overrides, world="2"):
        path = self.write("base.json", base)
        options = [word for override in overrides for word in ("-o", override)]
        script = "[ $RANK != 0 ] || cat $ZERO_CONFIG"
        code, out, err = self.run_zerorun("-n", world, "--no-prefix", "--config", path, *options,
                                          "--", "sh", "-c", script)
        self.assertEqual(code, 0, err)
        return out

    def test_overrides(self):
        out = self.merged(
            self.BASE, "zero_optimization.stage=2", "bf16.enabled=true",
            "optimizer.params.lr=1e-3", "optimizer.params.betas=[0.8,\n0.9]",
            "optimizer.type=Adam", "autotuning.a.b.c={\"d\":[]}", "autotuning.text=a=\"b\", \\c",
            "autotuning.empty=", "autotuning.none.x=null", "train_batch_size=32",
            "train_batch_size=64", "train_micro_batch_size_per_gpu=16")
        expected = json.loads(self.BASE)
        expected["zero_optimization"] = {"stage": 2}
        expected["bf16"]["enabled"] = True
        expected["optimizer"]["type"] = "Adam"
        expected["optimizer"]["params"].update(lr=1e-3, betas=[0.8, 0.9])
        expected["autotuning"].update(a={"b": {"c": {"d": []}}}, text="a=\"b\", \\c", empty="",
                                      none={"x": None})
        expected.update(train_batch_size=64, train_micro_batch_size_per_gpu=16)
        self.assertEqual(json.loads(out), expected)

    def test_overrides_leave_all_else_on_its_line(self):
        self.assertEqual(
            self.merged(self.BASE, "optimizer.params.betas=[0.8, 0.9]", "bf16.enabled=true",
                        "optimizer.params.weight_decay=0", "autotuning.none.x=1",
                        "zero_optimization.stage=1"),
            self.BASE.replace("[\n        0.9, 0.999 ]", "[0.8, 0.9]\n")
            .replace("{}", "{\"enabled\": true}").replace("1e-08", "1e-08, \"weight_decay\": 0")
            .replace("{\n  } }\n}", "{\"x\": 1\n  } }, \"zero_optimization\": {\"stage\": 1}\n}"))

    def mistakes(self, base, *overrides, world="2"):
        path = self.write("base.json", base)
        options = [word for override in overrides for word in ("-o", override)]
        code, out, err = self.run_zerorun("-n", world, "--config", path, *options, "--", "echo", "up")
        self.assertEqual((code, out), (64, ""), err)
        self.assertNotIn("config.json", err)
        lines = err.splitlines()
        self.assertTrue(all(line.startswith("zerorun: ") for line in lines), err)
        return [line[len("zerorun: "):].replace(path, "BASE") for line in lines]

    def mistake(self, base, *overrides):
        lines = self.mistakes(base, *overrides)
        self.assertEqual(len(lines), 1, lines)
        return lines[0]

    def test_mistakes_in_overrides_name_them(self):
        batch = "train_batch_size 15 is not train_micro_batch_size_per_gpu 8"
        for overrides, text in (
                (("optimizer.params.lr=-1", "bf16.enabled=true"),
                 "-o optimizer.params.lr=-1: BASE, line 4: optimizer.params.lr is -1: "),
                (("zero_optimization.stage=9",),
                 "-o zero_optimization.stage=9: zero_optimization.stage is 9: it must be"),
                (("zero_optimization.stagee=1", "zero_optimization.stagee=2"),
                 "-o zero_optimization.stagee=2: the key zero_optimization.stagee is unknown; the "
                 "nearest known one is zero_optimization.stage"),
                (("bf16.enabled=true", "fp16.enabled=true"), "-o bf16.enabled=true "
                 "-o fp16.enabled=true: fp16 and bf16 (line 9) are both enabled"),
                (("train_batch_size=15",), "-o train_batch_size=15: BASE, line 1: " + batch),
                (("optimizer={\"type\": \"Lion\"}",), "-o optimizer={\"type\": \"Lion\"}: "
                 "BASE, line 3: optimizer.type \"Lion\" is not supported"),
                (("optimizer.params.eps=[1e-8",), "-o optimizer.params.eps=[1e-8: BASE, line 7: "
                 "optimizer.params.eps must be a number, not a text"),
                (("optimizer.params.lr=1e999",),
                 "-o optimizer.params.lr=1e999: 1e999 is too large for a number"),
                (("optimizer.type=a\tb",),
                 "-o optimizer.type=a\tb: a text has a control character in it"),
                (("bf16={\"enabled\": true, \"enabled\": false}",),
                 "\"enabled\" is given again"),
                (("optimizer.type.x=1",),
                 "-o optimizer.type.x=1: \"optimizer.type\" is not an object"),
                (("train_batch_size.x=1",), "\"train_batch_size\" is not an object")):
            self.assertIn(text, self.mistake(self.BASE, *overrides))

    def test_mistakes_in_the_original_name_its_line(self):
        for base, override, text in (
                ("{ \"a\": 1,, }", "a=1", "BASE, line 1, column 10: "),
                ("[]", "a=1", "-o a=1: BASE is not an object"),
                ("{ \"bf16\": {}, \"bf16\": {} }", "a=1", "BASE, line 1: \"bf16\" is given again"),
                (self.BASE.replace("\"eps\"", "\"epz\""), "optimizer.params.eps=1e-8",
                 "BASE, line 7: the key optimizer.params.epz is unknown"),
                (self.BASE.replace("eps\": 1e-08", "eps\": \"x\""), "bf16.enabled=true",
                 "BASE, line 7: optimizer.params.eps must be a number"),
                ("{}", "train_batch_size=2", "BASE: optimizer.type is missing: add ")):
            err = self.mistake(base, override)
            self.assertEqual(err[:len(text)], text)

    def test_each_mistake_in_overrides_is_told_with_its_own(self):
        for overrides, lines in (
                (("optimizer.params.lr=-1", "gradient_clipping=\"x\""),
                 ("-o optimizer.params.lr=-1: BASE, line 4: optimizer.params.lr is -1: ",
                  "-o gradient_clipping=\"x\": gradient_clipping must be a number")),
                (("bf16.enabledd=true", "optimizer.params.lr=1e-3", "zerod.versions.keep=99",
                  "train_batch_size=15"),
                 ("-o bf16.enabledd=true: the key bf16.enabledd is unknown",
                  "-o zerod.versions.keep=99: zerod.versions.keep is 99: ",
                  "-o train_batch_size=15: BASE, line 1: train_batch_size 15 is not ")),
                # Each alone would make it as well.
                (("zerod.checkpoint.every_steps=5", "zerod.checkpoint.every_minutes=5"),
                 ("-o zerod.checkpoint.every_minutes=5: periodic checkpoints need a folder",
                  "-o zerod.checkpoint.every_steps=5: periodic checkpoints need a folder")),
                # What is missing without another is no mistake.
                (("optimizer={\"type\": \"Lion\"}", "zerod.checkpoint.dir=here",
                  "zerod.checkpoint.every_steps=1"),
                 ("-o optimizer={\"type\": \"Lion\"}: BASE, line 3: optimizer.type \"Lion\" is ",
                  "-o zerod.checkpoint.dir=here: zerod.checkpoint.dir must be an absolute path"))):
            err = self.mistakes(self.BASE, *overrides)
            self.assertEqual(len(err), len(lines), err)
            for line, text in zip(err, lines):
                self.assertEqual(line[:len(text)], text)

    def test_config_is_checked_before_anything_starts(self):
        batch = ("line 2: train_batch_size 16 is not train_micro_batch_size_per_gpu 8 x "
                 "gradient_accumulation_steps 0 (inferred, rounded down) x world size 3 (-n or --world)")
        text = self.BASE.replace("{", "{\n", 1)
        path = self.write("base.json", text)
        command = ("--no-prefix", "--", "echo", "up")
        for env, arguments in (({}, ("--config", path)), ({"ZERO_CONFIG": path}, ())):
            self.env.update(env)
            code, out, err = self.run_zerorun("-n", "3", *arguments, *command)
            self.assertEqual((code, out), (64, ""), err)
            self.assertIn("zerorun: %s, %s" % (path, batch), err)
        self.write("base.json", text.replace("eps", "epz"))
        code, out, err = self.run_zerorun("-n", "2", *command)
        self.assertEqual((code, out), (64, ""), err)
        self.assertIn("%s, line 8: the key optimizer.params.epz is unknown" % path, err)
        for word, text in (("/nowhere", "/nowhere: No such file"), (self.folder, "Is a directory")):
            code, out, err = self.run_zerorun("-n", "2", "--config", word, *command)
            self.assertEqual((code, out), (64, ""), err)
            self.assertIn(text, err)

    def test_config_beside_the_trainer_is_told_of(self):
        learner = self.write("learner", "#!/bin/sh\necho up $ZERO_CONFIG\n", 0o755)
        path = self.write("learner.json", self.BASE.replace("eps", "epz"))
        code, out, err = self.run_zerorun("-n", "1", "--no-prefix", "--", learner)
        self.assertEqual((code, out), (0, "up\n"), err)
        self.assertIn("%s, line 7: the key optimizer.params.epz is unknown" % path, err)
        self.assertIn("would be refused, if the trainer reads it", err)
        self.write("learner.json", self.BASE)
        code, out, err = self.run_zerorun("-n", "1", "--no-prefix", "--", learner)
        self.assertNotIn("learner.json", err)

    def test_config_without_overrides_is_passed_as_it_is(self):
        base = self.write("base.json", self.BASE)
        command = ("--", "sh", "-c", "echo $ZERO_CONFIG")
        code, out, _ = self.run_zerorun("-n", "1", "--no-prefix", "--config",
                                        os.path.relpath(base), *command)
        self.assertEqual((code, out), (0, base + "\n"))
        self.env["ZERO_CONFIG"] = base
        code, out, _ = self.run_zerorun("-n", "1", "--no-prefix", *command)
        self.assertEqual((code, out), (0, base + "\n"))

    def test_default_config_lies_beside_the_trainer(self):
        self.write("learner.sh", "#!/bin/sh\nexec cat $ZERO_CONFIG\n", 0o755)
        os.mkdir(self.path("bin"))
        os.symlink("../learner.sh", self.path("bin/learner"))
        self.env["PATH"] = self.path("bin") + ":" + self.env["PATH"]
        code, _, err = self.run_zerorun("-n", "2", "-o", "bf16.enabled=true", "--", "learner")
        self.assertEqual(code, 64)
        self.assertIn("%s/learner.json cannot be read: give one with --config"
                      % os.path.realpath(self.folder), err)
        self.write("learner.json", self.BASE)
        code, out, err = self.run_zerorun(
            "-n", "2", "--no-prefix", "-o", "bf16.enabled=true", "--", "learner")
        self.assertEqual((code, out.count("{\"enabled\": true}")), (0, 2), err)


if __name__ == "__main__":
    unittest.main(verbosity=1)
