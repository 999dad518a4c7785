#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""A daemon that dies is replaced by one that has its memory, until the group ends and all of it is free.

Where a daemon has to misbehave it is a stand-in, whose lives are written down one by one; else it is
zerod. ZERO_KILLS sets how many kills in a row it must outlive.
"""
import json
import os
import pathlib
import random
import re
import resource
import signal
import time
import unittest

from zerorun_case import BUILD, LIMIT, PYTHON, ZerorunCase, wait_until

BOOK = pathlib.Path(__file__).parent.parent / "data" / "devils-dictionary.txt"
KILLS = int(os.environ.get("ZERO_KILLS", "50"))

# Life N does what the file life.N says; the last one there is goes on for those after it.
STAND_IN = """#!%s -S
import json, os, signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
out.connect(os.environ["NOTIFY_SOCKET"])

def say(text, *fds):
    socket.send_fds(out, [text.encode()], fds)

def make(content):
    fd = os.memfd_create("kept")
    os.write(fd, content.encode())
    return fd

def keep(name, *contents):
    fds = list(map(make, contents))
    say("FDSTORE=1\\nFDPOLL=0\\nFDNAME=" + name + "\\n", *fds)
    for fd in fds:
        os.close(fd)

def remove(name):
    say("FDSTOREREMOVE=1\\nFDNAME=" + name + "\\n")

def barrier():
    ends = os.pipe()
    say("BARRIER=1", ends[1])
    os.close(ends[1])
    assert os.read(ends[0], 1) == b""
    os.close(ends[0])

def held():  # how many memfds of ours zerorun has
    links = [os.readlink("/proc/%%d/fd/%%s" %% (os.getppid(), n))
             for n in os.listdir("/proc/%%d/fd" %% os.getppid())]
    return links.count("/memfd:kept (deleted)")

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def live():
    say("READY=1")
    signal.sigwait([signal.SIGTERM])
    sys.exit(0)

def last():  # tells the trainer to end
    open(folder + "/done", "w")
    live()

folder = os.environ["LIVES"]
life = len([n for n in os.listdir(folder) if n.startswith("got.")])
count = int(os.environ.get("LISTEN_FDS", 0))
assert count == 0 or os.environ["LISTEN_PID"] == str(os.getpid())
names = os.environ["LISTEN_FDNAMES"].split(":") if count else []
assert len(names) == count
got = [[name, os.pread(3 + i, 1 << 20, 0).decode(), os.fstat(3 + i).st_ino]
       for i, name in enumerate(names)]
others = []
for n in os.listdir("/proc/self/fd"):
    try:
        others += [os.readlink("/proc/self/fd/" + n)] if int(n) >= 3 + count else []
    except OSError:  # that of the list
        pass
with open(folder + "/got.new", "w") as file:
    json.dump({"got": got, "others": others}, file)
os.rename(folder + "/got.new", folder + "/got.%%d" %% life)
text = life
while not os.path.exists("%%s/life.%%d" %% (folder, text)):
    text -= 1
exec(open("%%s/life.%%d" %% (folder, text)).read())
""" % PYTHON


class Kept(ZerorunCase):
    """What zerorun keeps, and for whom."""
    ZEROD = STAND_IN

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("lives"))
        self.env["LIVES"] = self.path("lives")
        self.wait = ("sh", "-c", "while [ ! -e %s/lives/done ]; do sleep 0.01; done" % self.folder)

    def live(self, *lives, options=("--restart-delay", "0"), trainer=None):
        """Runs a group of one whose daemon has these lives."""
        for number, text in enumerate(lives):
            self.write("lives/life.%d" % number, text)
        return self.run_zerorun("-n", "1", *options, "--", *(trainer or self.wait))

    def got(self, life):
        with open(self.path("lives/got.%d" % life)) as file:
            return json.load(file)["got"]

    def named(self, life):
        return sorted((name, content) for name, content, _ in self.got(life))

    def test_successors_get_the_same_memory_under_the_same_names(self):
        code, _, err = self.live(
            "keep('master', 'weights'); keep('pair', 'one', 'two'); keep('m.1', 'x' * 100000)\n"
            "say('READY=1'); die()", "die()", "sys.exit(3)", "last()")
        self.assertEqual(code, 0, err)
        kept = [("m.1", "x" * 100000), ("master", "weights"), ("pair", "one"), ("pair", "two")]
        self.assertEqual(self.named(0), [])
        for life in (1, 2, 3):
            self.assertEqual(self.named(life), kept)
            self.assertEqual(self.got(life), self.got(1))  # the same objects, not copies
        self.assertIn("zerod 0 was killed by signal 9 (Killed): restart 1 of 100 in 0.0 s", err)
        self.assertIn("zerod 0 ended with exit code 3: restart 3 of 100 in 0.0 s", err)

    def test_only_what_is_kept_is_open_in_a_successor(self):
        code, _, err = self.live(
            "say('READY=1')\nfor i in range(40): keep('f', str(i))\ndie()", "last()")
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(int(c) for _, c, _ in self.got(1)), list(range(40)))
        for life in (0, 1):
            with open(self.path("lives/got.%d" % life)) as file:
                others = json.load(file)["others"]
            strange = [o for o in others if not o.startswith(("/proc/", self.folder))]
            self.assertEqual(len(strange), 1, others)  # its own socket
            self.assertTrue(strange[0].startswith("socket:"), others)

    def test_a_name_may_be_kept_twice_and_is_removed_as_a_whole(self):
        code, _, err = self.live(
            "keep('a', 'old'); keep('b', 'B'); keep('a', 'new'); say('READY=1'); die()",
            "remove('a'); remove('never there'); keep('c', 'C'); die()",
            "remove('c'); keep('c', 'C2'); die()", "last()")
        self.assertEqual(code, 0, err)
        self.assertEqual(self.named(1), [("a", "new"), ("a", "old"), ("b", "B")])
        self.assertEqual(self.named(2), [("b", "B"), ("c", "C")])
        self.assertEqual(self.named(3), [("b", "B"), ("c", "C2")])

    def test_a_barrier_ends_when_all_before_it_is_done(self):
        code, _, err = self.live("""
counts = []
say("READY=1")
for i in range(100):
    keep("a", "x"); keep("b", "y")
    barrier()
    counts.append(held())
    remove("a"); remove("b")
    barrier()
    counts.append(held())
assert counts == [2, 0] * 100, counts
last()
""")
        self.assertEqual(code, 0, err)

    def test_what_has_no_name_is_called_stored(self):
        code, _, err = self.live("say('READY=1'); say('FDSTORE=1', make('x')); die()", "last()")
        self.assertEqual(code, 0, err)
        self.assertEqual(self.named(1), [("stored", "x")])

    def test_requests_that_make_no_sense_are_refused_aloud(self):
        code, _, err = self.live(
            "say('READY=1'); keep('a' * 255, 'longest'); keep('a' * 256, 'x'); keep('a:b', 'x')\n"
            "keep('', 'x'); keep('a\\tb', 'x'); say('FDSTOREREMOVE=1'); say('STATUS=x', make('x'))\n"
            "say('FDSTORE=1\\nFDNAME=b\\nX=' + 5000 * 'x', make('x')); barrier()\n"
            "assert held() == 1; die()", "last()")
        self.assertEqual(code, 0, err)
        self.assertEqual(self.named(1), [("a" * 255, "longest")])
        self.assertEqual(err.count("is no name for a kept fd"), 4)
        for text in ("zerod 0: FDNAME=%s is" % ("a" * 255), "zerod 0: FDNAME=a:b is",
                     "FDSTOREREMOVE=1 without FDNAME= is refused",
                     "1 fds came without FDSTORE=1: they are not kept",
                     "a message of over 4095 bytes is refused"):
            self.assertIn(text, err)

    def test_more_than_can_be_kept_is_refused_aloud(self):
        text = ("say('READY=1')\nfor i in range(130): keep('f', *'abcd')\n"
                "barrier(); assert held() == 512; die()")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        code, _, err = self.live(text, "last()")
        self.assertEqual(code, 0, err)
        self.assertEqual(len(self.got(1)), 512)
        self.assertEqual(err.count("4 of 4 fds named f are not kept"), 2)

    def test_fds_that_the_system_drops_are_told(self):
        text = ("say('READY=1')\nfor i in range(150): keep('f', 'x'); barrier()\nlast()")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (150, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        code, _, err = self.live(text)
        self.assertEqual(code, 0, err)
        self.assertIn("zerod 0: an fd that came with FDNAME=f was lost: raise the limit", err)

    def test_only_the_daemon_is_heard(self):
        script = ("import os, socket, time; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
                  "s.connect(os.environ['ZERO_RUNTIME_DIR'] + '/rank-0.notify')\n"
                  "for text in (b'FDSTORE=1\\nFDNAME=bad', b'FDSTOREREMOVE=1\\nFDNAME=good'):\n"
                  "    socket.send_fds(s, [text], [0] if b'bad' in text else [])\n"
                  "open(%r, 'w')\n"
                  "while not os.path.exists(%r): time.sleep(0.01)"
                  % (self.path("said"), self.path("lives/done")))
        code, _, err = self.live(
            "keep('good', 'x'); say('READY=1')\n"
            "while not os.path.exists(%r): pass\nbarrier(); die()" % self.path("said"), "last()",
            trainer=(PYTHON, "-S", "-c", script))
        self.assertEqual(code, 0, err)
        self.assertEqual(self.named(1), [("good", "x")])
        self.assertEqual(len(re.findall(r"process \d+ is not zerod 0: what it says to us is refused",
                                        err)), 1)

    def test_a_daemon_may_ask_for_more_time_to_end(self):
        ends = ("import time\nsay('READY=1'); open(folder + '/done', 'w')\n"
                "signal.sigwait([signal.SIGTERM]); say('STOPPING=1')\n"
                "for i in range(25): say('EXTEND_TIMEOUT_USEC=1500000'); time.sleep(0.1)\n"
                "open(folder + '/saved', 'w')\n%s")
        code, _, err = self.live(ends % "sys.exit(0)", options=("--grace", "1"))
        self.assertEqual(code, 0, err)
        self.assertTrue(os.path.exists(self.path("lives/saved")))
        self.assertNotIn("does not end", err)

    def test_a_daemon_that_has_asked_and_still_does_not_end_is_killed(self):
        code, _, err = self.live(
            "import time\nsay('READY=1'); open(folder + '/done', 'w')\n"
            "signal.sigwait([signal.SIGTERM]); say('EXTEND_TIMEOUT_USEC=1500000')\n"
            "time.sleep(1000)", options=("--grace", "1"))
        self.assertIn("zerod 0 does not end: killing it", err)

    # ---- restarts ---------------------------------------------------------------------------

    def test_daemon_that_fails_at_once_again_and_again(self):
        start = time.monotonic()
        code, _, err = self.live(
            "say('READY=1'); barrier(); sys.exit(5)",
            "print('no luck with the arena', file=sys.stderr); sys.exit(5)",
            options=("--max-daemon-restarts", "4"))
        self.assertEqual(code, 70, err)
        for count, delay in enumerate(("0.1", "0.2", "0.4", "0.8"), 1):
            self.assertIn("zerod 0 ended with exit code 5: restart %d of 4 in %s s\n"
                          % (count, delay), err)
        self.assertGreaterEqual(time.monotonic() - start, 0.1 + 0.2 + 0.4 + 0.8)
        self.assertIn("while the group was running, with no restart left (--max-daemon-restarts 4)",
                      err)
        self.assertIn("the last lines of zerod 0:\nno luck with the arena\n", err)

    def test_daemon_that_had_lived_is_restarted_at_once(self):
        code, _, err = self.live("say('READY=1'); barrier(); signal.sigtimedwait([], 1.1); die()",
                                 "die()", "last()", options=())
        self.assertEqual(code, 0, err)
        self.assertIn("restart 1 of 100 in 0.0 s", err)
        self.assertIn("restart 2 of 100 in 0.1 s", err)

    def test_daemon_that_refuses_what_was_kept_is_not_tried_again(self):
        code, _, err = self.live(
            "keep('a', 'x'); say('READY=1'); die()",
            "print('the journal is of version 7', file=sys.stderr); sys.exit(78)")
        self.assertEqual(code, 70, err)
        self.assertIn("zerod 0 ended with exit code 78: what was kept for it is refused", err)
        self.assertIn("the last lines of zerod 0:\nthe journal is of version 7\n", err)
        self.assertFalse(os.path.exists(self.path("lives/got.2")))

    def test_daemon_that_is_told_to_end_is_not_restarted(self):
        code, _, err = self.live("keep('a', 'x'); say('READY=1'); say('STOPPING=1'); sys.exit(0)")
        self.assertEqual(code, 75, err)
        self.assertFalse(os.path.exists(self.path("lives/got.1")))

    def test_successor_that_does_not_get_ready(self):
        code, _, err = self.live("say('READY=1'); die()", "print('stuck', flush=True)\n"
                                 "signal.sigwait([signal.SIGTERM])",
                                 "last()", options=("--ready-timeout", "1"))
        self.assertEqual(code, 0, err)
        self.assertIn("zerod 0 did not get ready within 1 s", err)
        self.assertIn("the last lines of zerod 0:\nstuck\n", err)
        self.assertIn("zerod 0 was killed by signal 9 (Killed): restart 2 of 100", err)

    def test_program_that_a_daemon_becomes_and_does_not_get_ready(self):
        code, _, err = self.live("say('READY=1'); barrier(); say('RELOADING=1')\n"
                                 "signal.sigwait([signal.SIGTERM])",
                                 "last()", options=("--ready-timeout", "1"))
        self.assertEqual(code, 0, err)
        self.assertIn("zerod 0 did not get ready within 1 s", err)
        self.assertIn("zerod 0 was killed by signal 9 (Killed): restart 1 of 100", err)

    def test_daemon_program_that_is_away_for_a_moment(self):
        code, _, err = self.live(
            "say('READY=1')\nwhile not os.path.exists(folder + '/../trains'): pass\n"
            "os.rename(os.environ['ZEROD'], folder + '/../away'); die()",
            "last()", options=(), trainer=(
                "sh", "-c", '> %s; until [ -e %s ]; do sleep 0.01; done; sleep 0.3; mv %s %s; %s'
                % (self.path("trains"), self.path("away"), self.path("away"), self.zerod, self.wait[2])))
        self.assertEqual(code, 0, err)
        self.assertIn("zerod 0 could not be started: restart 2 of 100 in 0.2 s", err)

    def test_trainer_that_fails_meanwhile_has_its_own_restarts(self):
        # It fails while its daemon waits for 0.1 s, and ends with the next life's end.
        script = "[ $RESTART_COUNT = 1 ] || exit 3; " + self.wait[2]
        code, _, err = self.live("say('READY=1'); die()", "last()", trainer=("sh", "-c", script),
                                 options=("--max-restarts", "1"))
        self.assertEqual(code, 0, err)
        self.assertIn("trainer 0 ended with exit code 3: restart 1 of 1", err)

    def test_daemon_that_waits_for_its_restart_is_not_started_by_an_ending_group(self):
        self.write("lives/life.0", "say('READY=1'); barrier(); die()")
        process = self.start("-n", "1", "--", "sleep", "1000")
        while "restart 6 of 100" not in process.stderr.readline():  # it waits for 3.2 s
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 143, err)
        self.assertFalse(os.path.exists(self.path("lives/got.6")))
        self.assert_nothing_left()

    def test_trainers_that_are_done_do_not_wait_for_a_daemon(self):
        pid = self.path("lives/pid.")
        script = ("while [ ! -s %s3 ] || kill -0 $(cat %s3) 2>/dev/null; do sleep 0.01; done"
                  % (pid, pid))
        code, _, err = self.live("say('READY=1'); barrier()\n"
                                 "with open(%r + str(life), 'w') as file: file.write(str(os.getpid()))\n"
                                 "die()" % pid,
                                 trainer=("sh", "-c", script), options=())
        self.assertEqual(code, 0, err)
        self.assertFalse(os.path.exists(self.path("lives/got.4")), err)  # it waits for 0.8 s

    def test_memory_is_free_while_a_slow_reader_is_waited_for(self):
        self.write("lives/life.0", "keep('a', 'x'); say('READY=1'); barrier(); live()")
        process = self.start("-n", "1", "--no-prefix", "--", "sh", "-c",
                             self.wait[2] + "; yes | head -c 150000")
        self.exists("lives/got.0")
        group = self.group_of(process)

        def kept():
            links = []
            for name in os.listdir("/proc/%d/fd" % group):
                try:
                    links.append(os.readlink("/proc/%d/fd/%s" % (group, name)))
                except OSError:  # closed meanwhile
                    pass
            return links.count("/memfd:kept (deleted)")

        wait_until(lambda: kept() == 1, "something is kept")
        self.write("lives/done", "")
        wait_until(lambda: kept() == 0, "nothing is")
        self.assertIsNone(process.poll())
        out, err = process.communicate(timeout=LIMIT)
        self.assertEqual((process.returncode, len(out)), (0, 150000), err)
        self.assert_nothing_left()


class Real(ZerorunCase):
    """The same with zerod and a model."""
    ZEROD = "#!/bin/sh\nexec %s \"$@\"\n" % os.path.abspath(os.path.join(BUILD, "daemon", "zerod"))
    CONFIG = {"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
              "zero_optimization": {"stage": 3}, "zerod": {"wait_timeout_seconds": 60}}

    def setUp(self):
        super().setUp()
        self.config = self.write("config.json", json.dumps(self.CONFIG))

    def train(self, steps, *options):
        gpt = os.path.join(BUILD, "client", "examples", "gpt")
        return self.start("-n", "2", "--config", self.config, *options, "--", gpt, "--text",
                          str(BOOK), "--steps", str(steps), "--width", "16", "--heads", "2",
                          "--seq", "16")

    def daemons(self):
        found = []
        for pid in self.processes():
            try:
                if os.readlink("/proc/%d/exe" % pid).endswith("/zerod"):
                    found.append(pid)
            except OSError:
                pass
        return found

    def memory(self, pid):
        """The memory objects that a process has open."""
        found = set()
        try:
            for name in os.listdir("/proc/%d/fd" % pid):
                path = "/proc/%d/fd/%s" % (pid, name)
                if os.readlink(path).startswith("/memfd:zero"):
                    found.add(os.stat(path).st_ino)
        except OSError:
            pass
        return found

    def weights(self, out):
        return re.findall(r"weights sha256=(\w+) step=(\d+)", out)

    def test_many_kills_in_a_row_change_no_weight(self):
        steps = 40 * KILLS
        out, err = self.train(steps).communicate(timeout=LIMIT)
        want = self.weights(out)
        self.assertEqual(len(want), 1, err)
        process = self.train(steps, "--restart-delay", "0", "--max-daemon-restarts", str(KILLS))
        seed = random.SystemRandom().randrange(1 << 30)
        chance, kills, last = random.Random(seed), 0, set()
        wait_until(lambda: "step" in process.stderr.readline(), "a step")
        while kills < KILLS and process.poll() is None:
            time.sleep(chance.uniform(0, 0.06))  # when, not how long to wait for something
            fresh = [pid for pid in self.daemons() if pid not in last]
            if fresh:
                pid = chance.choice(fresh)
                last.add(pid)
                os.kill(pid, signal.SIGKILL)
                kills += 1
        out, err = process.communicate(timeout=2 * LIMIT)
        what = "seed %d\n%s" % (seed, err[-3000:])
        self.assertEqual((process.returncode, self.weights(out)), (0, want), what)
        self.assertEqual(len(re.findall(r"restart \d+ of %d" % KILLS, err)), KILLS, what)
        self.assert_nothing_left()

    def run_until_lodged(self):
        """A group at work, and all memory that belongs to it."""
        process = self.train(10000000)
        wait_until(lambda: "step" in process.stderr.readline(), "a step")
        group = self.group_of(process)
        kept = self.memory(group)
        self.assertGreaterEqual(len(kept), 4)
        for pid in self.daemons():
            self.assertTrue(self.memory(pid) & kept)
        return process, group, kept

    def assert_freed(self, kept):
        """Nobody whom we may look at has it; a process that ends closes its files last."""
        def left():
            pids = [int(n) for n in os.listdir("/proc") if n.isdigit()]
            return set().union(*map(self.memory, pids)) & kept
        wait_until(lambda: not left(), "nobody has the memory")

    def test_memory_is_free_after_the_end(self):
        process, _, kept = self.run_until_lodged()
        process.terminate()
        process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 143)
        self.assert_nothing_left()
        self.assert_freed(kept)

    def test_memory_is_free_after_kills_of_zerorun(self):
        for victims in ("front", "group", "both"):
            process, group, kept = self.run_until_lodged()
            if victims != "group":
                if victims == "both":
                    os.kill(process.pid, signal.SIGSTOP)
                    os.kill(group, signal.SIGKILL)
                process.kill()
            else:
                os.kill(group, signal.SIGKILL)
            process.communicate(timeout=LIMIT)
            wait_until(lambda: not self.processes(), "all processes are gone")
            self.assert_freed(kept)

    def test_daemons_alone_are_restarted_too(self):
        process = self.start("-n", "2", "--daemons-only")
        process.stdout.readline()
        before = self.daemons()
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(set(self.daemons()) - set(before)) == 1, "a successor")
        process.terminate()
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 0, err)
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main(verbosity=1)
