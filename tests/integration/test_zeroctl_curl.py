#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""A daemon answers curl's HTTP/2 with gRPC that a decoder knowing only the format can read.

Neither side of zerod's gRPC takes part in the client: curl speaks HTTP/2, the framing and the wire
format of protobuf are read here, and the field numbers come from control.proto itself.
"""
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import tempfile

from harness import BUILD, LIMIT, SOURCE, ZEROCTL, check, done

home = pathlib.Path(tempfile.mkdtemp(prefix="zh-"))


def start_daemon():
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.settimeout(LIMIT)
    notify.bind(str(home / "notify"))
    process = subprocess.Popen([str(BUILD / "daemon" / "zerod"), "--rank", "0", "--world", "1",
                                "--runtime-dir", str(home / "run")],
                               env={**os.environ, "NOTIFY_SOCKET": str(home / "notify")})
    check(b"READY=1" in notify.recv(4096), "the daemon is ready")
    notify.close()
    return process


def call(method, message=b""):
    """(HTTP status, headers and trailers, body) of one call by curl."""
    (home / "request").write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
    subprocess.run(["curl", "--silent", "--show-error", "--http2-prior-knowledge", "--unix-socket",
                    str(home / "run" / "rank-0.control"), "--max-time", "60", "--dump-header",
                    str(home / "headers"), "--output", str(home / "body"), "--header",
                    "content-type: application/grpc", "--header", "te: trailers", "--data-binary",
                    f"@{home / 'request'}", f"http://localhost/zero.v1.Control/{method}"],
                   check=True, timeout=LIMIT)
    lines = (home / "headers").read_text().splitlines()
    fields = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
    body = (home / "body").read_bytes() if (home / "body").exists() else b""
    (home / "body").unlink(missing_ok=True)
    return lines[0].split()[1], fields, body


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields_of(data):
    """[(number, value)] of a protobuf message."""
    out, at = [], 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        else:
            raise ValueError(f"wire type {kind}")
        out.append((key >> 3, value))
    check(at == len(data), "the message ends where its last field ends")
    return out


def numbers_of(message):
    """{name: number} of a message in control.proto."""
    text = (SOURCE / "proto" / "zero" / "v1" / "control.proto").read_text()
    body = re.search(rf"message {message} {{(.*?)\n}}", text, re.S).group(1)
    return {name: int(number) for name, number in re.findall(r"(\w+) = (\d+);", body)}


def test_status(process):
    code, fields, body = call("Status")
    check(code == "200" and fields["content-type"].startswith("application/grpc"), f"HTTP {code}")
    check(fields.get("grpc-status") == "0", f"trailers {fields}")
    compressed, length = struct.unpack(">BI", body[:5])
    check(compressed == 0 and length == len(body) - 5, "one message, framed")
    number, got = numbers_of("StatusReply"), {}
    for key, value in fields_of(body[5:]):
        got.setdefault(key, value)
    check(got.get(number["rank"], 0) == 0 and got[number["world"]] == 1, "rank and world")
    check(got[number["state"]] == b"empty", "nobody has registered a model")
    check(got[number["pid"]] == process.pid, "the daemon's own pid")
    check(got[number["last_step_age"]] < 0, "no step yet")
    version = subprocess.run([str(ZEROCTL), "--version"], capture_output=True, text=True,
                             check=True).stdout.split()[1]
    check(got[number["version"]].decode() == version, "the version that zeroctl has too")


def test_refusals():
    check(call("Model")[1].get("grpc-status") == "0", "Model")
    check(call("Nope")[1].get("grpc-status") == "12", "an unknown method is UNIMPLEMENTED")
    check(call("Status", b"\x0f\xff")[1].get("grpc-status") == "3", "garbage is INVALID_ARGUMENT")
    check(call("Status", b"\0" * 70000)[1].get("grpc-status") == "8", "70000 bytes are too many")
    check(call("Status")[1].get("grpc-status") == "0", "and it goes on")


daemon = start_daemon()
try:
    test_status(daemon)
    test_refusals()
    check(call("Shutdown")[1].get("grpc-status") == "0", "the reply comes before the end")
    check(daemon.wait(LIMIT) == 0, "the daemon ends in good order")
    check(not list((home / "run").glob("rank-*")), "and leaves nothing in its folder")
finally:
    if daemon.poll() is None:
        daemon.kill()
        daemon.wait()
    shutil.rmtree(home)
done()
