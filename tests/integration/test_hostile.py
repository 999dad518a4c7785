#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Whatever a client sends or does, it gets a named error or loses its connection; the daemon and the
other trainers go on.

Frames are put together here by hand, so that nothing of libzeroclient is in the way.
"""
import array
import atexit
import mmap
import random
import re
import signal
import socket
import struct

from harness import *

HELLO, WELCOME, CONFIG, TENSORS, END, REGISTERED, OPEN, OPENED, MODEL_END, ERROR, CLOSE, LIST, \
    STEPS, SAVE, SAVED, LOOK = range(1, 17)
CODES = {}


def read_codes():
    for line in (SOURCE / "proto" / "codes.def").read_text().splitlines():
        match = re.match(r"CODE\((\w+), (\d+),", line)
        if match:
            CODES[int(match[2])] = match[1]


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(name, shape, lr_scale=1.0, decay=float("nan")):
    packed = b"".join(varint(d) for d in shape)
    return field(1, name) + field(2, packed) + field(3, lr_scale) + field(4, decay)


def frame(kind, body=b""):
    return b"ZR" + struct.pack("<HI", kind, len(body)) + body


def fields(body):
    """{number: [values]} of a message."""
    out, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = body[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(body):
        key = number()
        if key & 7 == 0:
            value = number()
        elif key & 7 == 1:
            value, at = struct.unpack_from("<d", body, at)[0], at + 8
        else:
            count = number()
            value, at = body[at:at + count], at + count
        out.setdefault(key >> 3, []).append(value)
    return out


class Client:
    def __init__(self, runtime, rank=0):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(f"{runtime}/rank-{rank}.sock")
        self.socket.settimeout(10)

    def send(self, data, fds=()):
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([data], control)

    def receive(self):
        """(kind, fields, fds), or None when the connection is closed."""
        try:
            data, control, _, _ = self.socket.recvmsg(70000, socket.CMSG_SPACE(4 * 200))
        except ConnectionResetError:
            return None
        if not data:
            return None
        fds = array.array("i")
        for _, _, part in control:
            fds.frombytes(part[:len(part) - len(part) % 4])
        return struct.unpack_from("<H", data, 2)[0], fields(data[8:]), list(fds)

    def expect(self, kind, what):
        got = self.receive()
        check(got is not None and got[0] == kind,
              f"{what}: wanted frame {kind}, got {got and (got[0], self.text(got))}")
        return got

    @staticmethod
    def text(got):
        if got and got[0] == ERROR:
            return CODES.get(got[1].get(1, [0])[0]), got[1].get(2, [b""])[0].decode()
        return got and got[1]

    def expect_error(self, code, part, what):
        got = self.receive()
        have = self.text(got)
        check(got is not None and got[0] == ERROR and have[0] == code and part in have[1],
              f"{what}: wanted {code} with '{part}', got {have}")

    def expect_end(self, what):
        try:
            for _ in range(3):
                if self.receive() is None:
                    return
        except TimeoutError:
            pass
        check(False, f"{what}: the connection is still open")

    def hello(self, role=0, protocol=1):
        self.send(frame(HELLO, field(1, protocol) + field(2, role)))
        return self

    def register(self, settings, layers=None):
        text = settings if isinstance(settings, (str, bytes)) else json.dumps(settings)
        self.send(frame(CONFIG, field(1, text)))
        layers = layers or [("layer", [("w", [100])])]
        for i, (name, tensors) in enumerate(layers):
            body = field(1, i) if i else b""
            body += field(2, name) + b"".join(field(3, tensor(*t)) for t in tensors)
            self.send(frame(TENSORS, body))
        count = sum(len(t) for _, t in layers)
        self.send(frame(END, field(1, len(layers)) + field(2, count)))

    def close(self):
        self.socket.close()


def listens(path):
    """A socket is bound a moment before it listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as attempt:
        return attempt.connect_ex(str(path)) == 0


class Daemons:
    """zerorun --daemons-only."""

    def __init__(self, world=1):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
        self.runtime = self.folder / "run"
        self.log = open(self.folder / "log", "w")
        self.process = subprocess.Popen([str(ZERORUN), "-n", str(world), "--daemons-only",
                                         "--runtime-dir", str(self.runtime)],
                                        stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        atexit.register(self.close)
        until(lambda: all(listens(self.runtime / f"rank-{r}.sock") for r in range(world)),
              what="daemons listen")

    def alive(self, what):
        check(self.process.poll() is None, f"{what}: the group ended\n{self.tail()}")

    def pid(self, rank=0):
        """Of the daemon of that rank."""
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().split(b"\0")
            except OSError:
                continue
            if str(self.runtime).encode() in words and words[0].endswith(b"zerod") \
                    and words[words.index(b"--rank") + 1] == str(rank).encode():
                return int(entry.parent.name)
        return None

    def tail(self):
        return (self.folder / "log").read_text()[-2000:]

    def trainer(self, rank=0, world=1, settings=None, **more):
        """A probe that attaches to it."""
        path = pathlib.Path(tempfile.mkstemp(dir=self.folder, suffix=".json")[1])
        path.write_text(json.dumps(settings or config(world)))
        return subprocess.Popen([str(PROBE), *more.get("arguments", ["--steps", "3", "--quiet"])],
                                env={**os.environ, "ZERO_CONFIG": str(path),
                                     "ZERO_SOCKET": f"{self.runtime}/rank-{rank}.sock"},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def close(self):
        atexit.unregister(self.close)
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def broken_frames(daemons):
    good = frame(HELLO, field(1, 1) + field(2, 0))
    cases = {
        "one byte": b"Z",
        "wrong magic": b"XX" + good[2:],
        "type 0": frame(0), "type 77": frame(77), "type 65535": frame(65535),
        "length too small": good[:4] + struct.pack("<I", 1) + good[8:],
        "length too large": good[:4] + struct.pack("<I", 0xffffffff) + good[8:],
        "truncated": good[:-1],
        "oversized": frame(CONFIG, b"\x0a" * 69700),
        "not protobuf": frame(HELLO, b"\xff" * 40),
        "huge length inside": frame(CONFIG, b"\x0a\xff\xff\xff\xff\x0f"),
        "name of control characters": frame(TENSORS, field(2, "a\nb")),
        "name that is no UTF-8": frame(TENSORS, field(2, b"\xff\xfe")),
        "name too long": frame(TENSORS, field(2, "x" * 256)),
        "nine dimensions": frame(TENSORS, field(2, "l") + field(3, tensor("t", [1] * 9))),
        "config over the cap": frame(CONFIG, field(1, b" " * 61441)),
        "path over the cap": frame(SAVE, field(1, "/" + "x" * 1023)),
        "path with a NUL": frame(SAVE, field(1, b"/a\0b")),
        "a daemon's answer to a save": frame(SAVED, field(1, "/tmp")),
        "a daemon's frame": frame(WELCOME, field(1, 1)),
        "an error": frame(ERROR, field(1, 3) + field(2, "no")),
    }
    for name, data in cases.items():
        client = Client(daemons.runtime)
        client.send(data)
        client.expect_end(name)
        client.close()
    client = Client(daemons.runtime)
    client.send(frame(TENSORS, field(1, 0) + b"\x1a\x00" * 32000))  # a frame, but a costly one
    client.expect(ERROR, "many empty tensors")
    client.close()
    chance = random.Random(5)
    for _ in range(300):
        client = Client(daemons.runtime)
        kind = chance.choice([1, 3, 4, 5, 7, 11, 12, 14, 16])
        data = bytearray(frame(kind, chance.randbytes(chance.randrange(200))))
        client.send(bytes(data))
        client.close()
    daemons.alive("broken frames")


def wrong_order(daemons):
    for name, data in {"register before hello": frame(END, field(1, 1) + field(2, 1)),
                       "tensors before hello": frame(TENSORS, field(2, "l")),
                       "open before hello": frame(OPEN, field(1, 1))}.items():
        client = Client(daemons.runtime)
        client.send(data)
        got = client.receive()
        check(got and got[0] == ERROR and Client.text(got)[0] == "INVALID_STATE",
              f"{name}: {Client.text(got)}")
        client.close()
    client = Client(daemons.runtime).hello(protocol=2)
    client.expect_error("VERSION", "protocol 2", "another protocol")
    client.expect_end("another protocol")
    client = Client(daemons.runtime).hello()
    client.expect(WELCOME, "hello")
    client.send(frame(HELLO, field(1, 1)))
    client.expect_error("PROTOCOL", "hello twice", "hello twice")
    client.expect_end("hello twice")
    client = Client(daemons.runtime)
    read_end, write_end = os.pipe()
    client.send(frame(HELLO, field(1, 1) + field(2, 0)), [read_end] * 50)
    client.expect(WELCOME, "fds nobody asked for")
    client.close()
    os.close(read_end)
    os.close(write_end)
    daemons.alive("wrong order")


def one_trainer(daemons):
    first = Client(daemons.runtime).hello()
    first.expect(WELCOME, "first trainer")
    second = Client(daemons.runtime).hello()
    second.expect_error("BUSY", f"pid {os.getpid()}", "second trainer")
    second.expect_end("second trainer")
    first.close()
    third = Client(daemons.runtime).hello()
    third.expect(WELCOME, "third trainer, after the first left")
    third.close()


def bad_models(daemons):
    good = config(1)
    client = Client(daemons.runtime).hello()
    client.expect(WELCOME, "hello")
    cases = [
        ("config that is no JSON", "{", None, "CONFIG", "line"),
        ("config with an unknown key", {**good, "optimzer": 1}, None, "CONFIG", "optimzer"),
        ("batch that does not fit", {**good, "train_batch_size": 3, "gradient_accumulation_steps": 2},
         None, "CONFIG", "train_batch_size"),
        ("sizes that overflow", good, [("l", [("w", [1 << 40, 1 << 40])])], "TOO_LARGE", "w"),
        ("sizes that overflow 2^64 to a small number", good, [("l", [("w", [1 << 33, 1 << 31, 1])])],
         "TOO_LARGE", "w"),
        ("a dimension of 0", good, [("l", [("w", [0])])], "INVALID_ARGUMENT", "dimension 0"),
        ("two tensors of a name", good, [("l", [("w", [1]), ("w", [1])])], "INVALID_ARGUMENT", "w"),
        ("memory that cannot be had", good, [("l", [("w", [1 << 44])])], "NO_MEMORY", "bytes"),
        ("no layers", good, [("l", [])], "INVALID_ARGUMENT", "no tensors"),
    ]
    for name, settings, layers, code, part in cases:
        client.register(settings, layers)
        client.expect_error(code, part, name)
    client.send(frame(CONFIG, field(1, json.dumps(good))))
    client.send(frame(TENSORS, field(1, 5) + field(2, "l")))
    client.expect_error("PROTOCOL", "layer 5", "layers out of order")
    client.send(frame(END, field(1, 9) + field(2, 9)))
    client.expect_error("PROTOCOL", "9", "counts that do not fit")
    client.send(frame(END))
    client.expect_error("INVALID_STATE", "no model", "attach to a model that is not there")
    client.close()
    daemons.alive("bad models")


def memory_is_safe(daemons):
    """What the fds allow, and what scribbling over the ring does."""
    client = Client(daemons.runtime).hello()
    client.expect(WELCOME, "hello")
    client.register(config(1))
    got = client.expect(REGISTERED, "register")
    if got is None or got[0] != REGISTERED:
        return
    ring, bell, window, staging, param = got[2][:5]
    for what, attempt in {
        "map parameters writable": lambda: mmap.mmap(param, 4096, prot=mmap.PROT_WRITE),
        "write parameters": lambda: os.pwrite(param, b"x", 0),
        "shrink parameters": lambda: os.ftruncate(param, 0),
        "shrink the ring": lambda: os.ftruncate(ring, 0),
        "grow the window": lambda: os.ftruncate(window, 1 << 30),
    }.items():
        try:
            attempt()
            check(False, f"{what} is possible")
        except (OSError, PermissionError):
            pass
    chance = random.Random(11)
    memory = mmap.mmap(ring, os.fstat(ring).st_size)
    alarm = mmap.mmap(bell, 4096)
    for _ in range(40):
        memory[64:] = chance.randbytes(len(memory) - 64)
        alarm[:8] = chance.randbytes(4) + b"\1\0\0\0"
    trainer = daemons.trainer()  # BUSY, or welcome after the scribbler was thrown out
    trainer.wait(60)
    client.close()
    client = Client(daemons.runtime).hello()
    client.expect(WELCOME, "after the scribbler")
    client.close()
    daemons.alive("scribbling")
    for fd in got[2]:
        os.close(fd)


def trainers_go_on(daemons):
    """A daemon that has seen all this still trains."""
    client = Client(daemons.runtime).hello()
    client.expect(WELCOME, "hello")
    client.send(frame(END))
    got = client.receive()
    client.close()
    check(got is not None and got[0] == TENSORS, f"the model comes back: {got and got[0]}")


def versions_in_any_order():
    daemons = Daemons(1)
    trainer = daemons.trainer()
    check(trainer.wait(60) == 0, f"a model is trained: {trainer.stdout.read()}")
    latest = field(1, (1 << 64) - 1)

    def observer():
        client = Client(daemons.runtime).hello(1)
        client.expect(WELCOME, "observer")
        client.send(frame(LIST))
        client.expect_error("INVALID_STATE", "registered", "a list before the model")
        client.send(frame(END))
        while client.receive()[0] != REGISTERED:
            pass
        return client

    client = Client(daemons.runtime).hello()
    client.expect(WELCOME, "hello")
    client.send(frame(OPEN, latest))
    client.expect_error("INVALID_STATE", "observers", "a version for a trainer")
    client.close()
    client = observer()
    client.send(frame(CLOSE))
    client.expect_error("INVALID_STATE", "no version is open", "closed before opened")
    client.send(frame(OPEN, field(1, 1 << 40)))
    client.expect_error("NOT_FOUND", str(1 << 40), "a step that was not")
    for _ in range(20):  # the first is answered when it is made, the others at once
        client.send(frame(OPEN, latest))
    kinds = [client.receive()[0] for _ in range(20)]
    check(sorted(kinds) == [OPENED] + [ERROR] * 19, f"opened twenty times: {kinds}")
    client.send(frame(LIST))
    client.expect(STEPS, "list")
    client.close()
    for _ in range(60):  # asks and is gone
        client = observer()
        client.send(frame(OPEN, latest))
        client.close()
    client = observer()
    client.send(frame(OPEN, latest))
    again = client.expect(OPENED, "after those that left")
    check(len(again[2]) == 1, f"fds of a version: {again[2]}")
    for fd in again[2]:
        os.close(fd)
    client.close()
    daemons.alive("versions in any order")
    daemons.close()


def saves_in_any_order():
    """Saves that are asked for at the wrong time, too often, or by those who leave."""
    daemons = Daemons(1)
    trainer = daemons.trainer()
    check(trainer.wait(60) == 0, f"a model is trained: {trainer.stdout.read()}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))

    client = Client(daemons.runtime)
    client.send(frame(SAVE, field(1, str(folder))))
    client.expect_error("INVALID_STATE", "observer", "a save before hello")
    client.close()
    client = Client(daemons.runtime).hello()
    client.expect(WELCOME, "hello")
    client.send(frame(SAVE, field(1, str(folder))))
    client.expect_error("INVALID_STATE", "observer", "a trainer's save on its own connection")
    client.close()
    client = Client(daemons.runtime).hello(1)
    client.expect(WELCOME, "observer")
    client.send(frame(LOOK))
    client.expect_error("INVALID_STATE", "no save", "a look before a save")
    client.send(frame(SAVE, field(1, "relative")))
    client.expect_error("INVALID_ARGUMENT", "absolute", "a relative folder")
    client.send(frame(SAVE))
    client.expect_error("INVALID_ARGUMENT", "zerod.checkpoint.dir", "no folder")
    for n in range(20):
        client.send(frame(SAVE, field(1, str(folder / str(n)))))
    kinds = [client.receive()[0] for _ in range(20)]
    check(SAVED in kinds and set(kinds) <= {SAVED, ERROR}, f"twenty saves at once: {kinds}")
    client.close()
    for n in range(60):  # asks and is gone
        client = Client(daemons.runtime).hello(1)
        client.expect(WELCOME, "observer")
        client.send(frame(SAVE, field(1, str(folder / f"gone-{n}"))))
        client.close()
    client = Client(daemons.runtime).hello(1)
    client.expect(WELCOME, "observer")

    def saved():
        client.send(frame(SAVE, field(1, str(folder / "last"))))
        got = client.receive()
        check(got[0] == SAVED or client.text(got)[0] == "BUSY", f"after all: {client.text(got)}")
        return got[0] == SAVED and got[1][1][0].decode()
    path = until(saved, what="a save after those that left")
    check(os.path.dirname(path) == str(folder / "last") and os.path.isdir(path), path)
    client.close()
    daemons.alive("saves in any order")
    daemons.close()
    shutil.rmtree(folder)


def attach_and_leave(daemons):
    """A thousand trainers and observers come and go: the daemon keeps nothing of them."""
    pid = daemons.pid()

    def kept():
        status_text = pathlib.Path(f"/proc/{pid}/status").read_text()
        return (len(os.listdir(f"/proc/{pid}/fd")),
                int(re.search(r"VmRSS:\s+(\d+)", status_text)[1]))

    def round_trip(role):
        client = Client(daemons.runtime).hello(role)
        client.expect(WELCOME, f"role {role}")
        client.send(frame(END))
        while True:
            got = client.receive()
            if got is None or got[0] in (REGISTERED, ERROR):
                break
        check(got is not None and got[0] == REGISTERED, f"role {role}: {Client.text(got)}")
        for fd in got[2] if got else []:
            os.close(fd)
        client.close()

    for _ in range(20):
        round_trip(0)
        round_trip(1)
    before = kept()
    for _ in range(500):
        round_trip(0)
        round_trip(1)
    until(lambda: kept()[0] <= before[0], what=f"fds are closed: {before} became {kept()}")
    # 16 KiB a client would be less than a session's own; sanitizers keep freed memory for a while
    check(kept()[1] < before[1] + 16384, f"memory grew: {before} became {kept()} KiB")


def log_is_bounded(daemons):
    """Whoever comes again and again fills no disk with lines about it."""
    def told(words):
        return (daemons.folder / "log").read_text().count(words)

    broken = told("sent a broken frame")
    room = [Client(daemons.runtime) for _ in range(48)]
    for client in room:  # each is let in before the crowd comes
        client.hello(1)
        client.expect(WELCOME, "observer")
    for _ in range(500):
        client = Client(daemons.runtime)
        client.expect_end("49th client")
        client.close()
    for client in room:
        client.send(b"broken")
        client.expect_end("broken frame")
        client.close()
    refused = told("48 clients are connected already")  # one in ten seconds
    check(1 <= refused <= 10, f"{refused} lines tell of 500 that were refused")
    check(told("sent a broken frame") - broken <= 10, f"broken frames are told: {daemons.tail()}")
    daemons.alive("a crowd")


def refused_starts():
    """What a daemon cannot start with, it says."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    zerod = str(BUILD / "daemon" / "zerod")

    def start(*arguments, env=None):
        run = subprocess.run([zerod, *map(str, arguments)], capture_output=True, text=True,
                             timeout=60, env={**os.environ, **(env or {})})
        return run.returncode, run.stdout + run.stderr

    long = folder / ("x" * 60) / ("y" * 60)
    long.mkdir(parents=True)
    (folder / "file").write_text("")
    for name, mode in (("group", 0o770), ("all", 0o777), ("sticky", 0o1777)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)  # mkdir's would be cut by the umask
    rank = ["--rank", "0", "--world", "1", "--runtime-dir"]
    for what, arguments, env, part in (
            ("a path that is too long", [*rank, long], {}, "longer than the 107 bytes"),
            ("a folder that is a file", [*rank, folder / "file"], {}, "Not a directory"),
            ("a folder that a group may write to", [*rank, folder / "group"], {}, "mode 770"),
            ("a folder that all may write to", [*rank, folder / "all"], {}, "nobody else may write"),
            ("one that is sticky", [*rank, folder / "sticky"], {}, "mode 1777; make one with"),
            ("a folder that cannot be made", [*rank, "/proc/zerod"], {}, "/proc/zerod"),
            ("a kernel set that is not there", [*rank, folder / "k"], {"ZERO_KERNELS": "sse9"}, "sse9"),
            ("a rank beyond the world", ["--rank", 2, "--world", 2, "--runtime-dir", folder], {}, "--rank"),
            ("no world", ["--rank", 0, "--runtime-dir", folder], {}, "--world"),
    ):
        code, text = start(*arguments, env=env)
        check(code not in (0, None) and part in text, f"{what}: exit {code}: {text}")
    few = subprocess.run(["sh", "-c", 'ulimit -n 20; exec "$@"', "sh", zerod, *rank, folder / "few"],
                         capture_output=True, text=True, timeout=60)
    check(few.returncode == 71 and "a world of 1 needs 144 open files and 20 are" in few.stderr, f"files: {few}")
    (folder / "config.json").write_text(json.dumps(config(2)))
    small = subprocess.run(["sh", "-c", 'ulimit -f 1024; exec "$@"', "sh", ZERORUN, "-n", "2", "--runtime-dir",
                            folder / "small", "--config", folder / "config.json", "--", PROBE, "--layers",
                            "a:1000x1000"], capture_output=True, text=True, timeout=60)
    check(small.returncode not in (0, None) and "(ulimit -f" in small.stderr and "signal 25" not in small.stderr,
          f"sizes: {small.returncode} {small.stderr[-2000:]}")
    stale = folder / "stale"
    stale.mkdir()
    stale.chmod(0o755)  # others may look, not write
    for name in ("sock", "peer", "control"):
        left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        left.bind(str(stale / f"rank-0.{name}"))
        left.close()
    log = open(folder / "log", "w")
    live = subprocess.Popen([zerod, *rank, str(stale)], stdout=log, stderr=log)

    def answers():
        try:
            client = Client(stale).hello()
            got = client.receive()
            client.close()
            return got is not None
        except OSError:
            return False

    until(answers, what="a daemon over stale sockets")
    code, text = start(*rank, stale)
    check(code != 0 and "another zerod runs as rank 0" in text, f"two daemons: exit {code}: {text}")
    check(answers(), "the first daemon went on")
    live.terminate()
    check(live.wait(30) == 0, f"SIGTERM: exit {live.returncode}")
    check(not [f for f in os.listdir(stale)], f"left behind: {os.listdir(stale)}")
    log.close()
    shutil.rmtree(folder)


def disagreement():
    """Ranks whose models differ both hear of it, with the difference."""
    daemons = Daemons(2)
    for one, two, part in (("a:10,20", "a:10,21", "[21]"), ("a:10", "a:10;b:5", "layer b")):
        trainers = [daemons.trainer(0, 2, arguments=["--layers", one]),
                    daemons.trainer(1, 2, arguments=["--layers", two])]
        for rank, trainer in enumerate(trainers):
            out = trainer.communicate(timeout=60)[0]
            check("CONFLICT" in out and part in out, f"rank {rank} of {one} and {two}: {out}")
    daemons.alive("disagreement")
    trainers = [daemons.trainer(r, 2) for r in range(2)]
    for trainer in trainers:
        out = trainer.communicate(timeout=60)[0]
        check(trainer.returncode == 0, f"a good model after the bad ones: {out}")
    trainer = daemons.trainer(0, 2, arguments=["--layers", "other:5"])
    out = trainer.communicate(timeout=60)[0]
    check("MISMATCH" in out and "layer other" in out, f"another model later: {out}")
    trainer = daemons.trainer(0, 2, config(2, stage=1), arguments=["--steps", "3"])
    out = trainer.communicate(timeout=60)[0]
    check("MISMATCH" in out and "stage" in out, f"another config later: {out}")
    daemons.close()


def stopped_trainer():
    """SIGSTOP of one trainer: the other's deadline names it; after SIGCONT training goes on."""
    daemons = Daemons(2)
    settings = config(2, zerod={"wait_timeout_seconds": 2})
    slow = daemons.trainer(1, 2, settings, arguments=["--steps", "1000000", "--quiet"])
    fast = daemons.trainer(0, 2, settings, arguments=["--steps", "1000000", "--quiet"])
    until(lambda: stepping(daemons), what="training runs")
    os.kill(slow.pid, signal.SIGSTOP)
    out = fast.communicate(timeout=60)[0]
    check("DEADLINE" in out and "rank 1" in out and f"pid {slow.pid}" in out, f"deadline: {out}")
    os.kill(slow.pid, signal.SIGCONT)
    again = daemons.trainer(0, 2, settings, arguments=["--steps", "1000000", "--quiet"])
    before = until(lambda: stepping(daemons), what="status")
    until(lambda: stepping(daemons) > before + 5, what="training goes on")
    for trainer in (slow, again):
        trainer.kill()
        trainer.communicate()
    daemons.alive("stopped trainer")
    daemons.close()


def stopped_daemon():
    """SIGSTOP of one daemon: the other's deadline names the daemon, not its trainer."""
    daemons = Daemons(2)
    settings = config(2, zerod={"wait_timeout_seconds": 4})
    trainers = [daemons.trainer(r, 2, settings, arguments=["--steps", "1000000", "--quiet"])
                for r in range(2)]
    until(lambda: stepping(daemons), what="training runs")
    stopped = daemons.pid(1)
    os.kill(stopped, signal.SIGSTOP)
    out = trainers[0].communicate(timeout=60)[0]
    os.kill(stopped, signal.SIGCONT)
    check("DEADLINE" in out and f"daemon of rank 1 (pid {stopped}) shows no sign of life" in out,
          f"deadline: {out}")
    trainers[1].kill()
    trainers[1].communicate()
    daemons.alive("stopped daemon")
    daemons.close()


def stepping(daemons):
    answer = status(daemons.runtime)
    return answer["ranks"][0].get("step", 0) if answer and answer.get("ranks") else 0


def main():
    read_codes()
    daemons = Daemons(1)
    for part in (broken_frames, wrong_order, one_trainer, bad_models, memory_is_safe, trainers_go_on,
                 attach_and_leave, log_is_bounded):
        part(daemons)
        print(f"{part.__name__}: done", flush=True)
    daemons.close()
    for part in (versions_in_any_order, saves_in_any_order, refused_starts, disagreement,
                 stopped_trainer, stopped_daemon):
        part()
        print(f"{part.__name__}: done", flush=True)
    done()


if __name__ == "__main__":
    main()
