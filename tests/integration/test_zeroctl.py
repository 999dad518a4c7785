#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""zeroctl shows what is so, says loudly what is wrong, and its exit code agrees."""
import json
import os
import pathlib
import pty
import resource
import shutil
import signal
import socket
import subprocess
import tempfile

from harness import BUILD, LIMIT, ZEROCTL, check, done

SERVER = BUILD / "tests" / "test_control"
home = pathlib.Path(tempfile.mkdtemp(prefix="zc-"))
servers = []


def zeroctl(*arguments, **more):
    run = subprocess.run([str(ZEROCTL)] + [str(a) for a in arguments], capture_output=True, text=True,
                         timeout=LIMIT, stdin=subprocess.DEVNULL, **more)
    return run.returncode, run.stdout, run.stderr


def serve(folder, rank, world, mode="ready", files=None):
    """A control service with fixed answers, in a folder below home."""
    where = home / folder
    where.mkdir(exist_ok=True)

    def limit():
        if files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    process = subprocess.Popen([str(SERVER), "serve", str(where), str(rank), str(world), mode],
                               stdout=subprocess.PIPE, text=True, preexec_fn=limit)
    servers.append(process)
    check(process.stdout.readline() == "ready\n", f"server {folder} {rank} starts")
    return process


def status(folder, *more):
    code, out, err = zeroctl("--runtime-dir", home / folder, "status", "--json", *more)
    return code, json.loads(out)


def test_good():
    serve("good", 0, 2)
    serve("good", 1, 2)
    code, got = status("good")
    check(code == 0 and got["good"] is True, f"two good ranks: exit {code}")
    check([r["rank"] for r in got["ranks"]] == [0, 1], "both ranks, in order")
    rank = got["ranks"][1]
    check(rank["state"] == "ready" and rank["step"] == 41 and rank["stage"] == 3
          and rank["world"] == 2 and rank["epoch"] == 0, f"state of a rank: {rank}")
    check(rank["arenas"] == {"param": {"bytes": 8192, "planned": 8192},
                             "grad": {"bytes": 16384, "planned": 16384}}, "arenas")
    check(rank["traffic"]["gathered_bytes"] == 9007199254740992, "2^53 bytes, exactly")
    check(rank["scalars"] == {"loss": 4.868776} and rank["step_time"] == 0.25, "numbers")
    check(rank["grad_norm"] is None, "not a number is null")
    code, out, _ = zeroctl("status", "-d", home / "good")
    check(code == 0 and "as planned" in out and "loss 4.868776" in out, "the table")
    check("\033" not in out, "no colour outside a terminal")


def test_versions():
    code, out, _ = zeroctl("versions", "-d", home / "good", "--json")
    got = json.loads(out)["ranks"]
    check(code == 0 and len(got) == 2, f"versions: {code} {out}")
    check(got[1] == {"rank": 1, "versions": [
        {"step": 40, "bytes": 8192, "readers": 3, "age": 0.25},
        {"step": 41, "bytes": 8192, "readers": 0, "age": 0}]}, f"versions of rank 1: {got[1]}")
    code, out, _ = zeroctl("versions", "-d", home / "good")
    check(code == 0 and out.split("\n")[1].split() ==
          ["0", "40", "8192", "8.00", "KiB", "3", "250", "ms"], f"the table of versions: {out}")
    check("2: 16.00 KiB of 32.00 KiB" in zeroctl("status", "-d", home / "good")[1], "in status")


def test_bad():
    serve("bad", 0, 4)
    serve("bad", 1, 4, "differs")
    serve("bad", 2, 4, "lost")
    code, out, _ = zeroctl("status", "-d", home / "bad")
    check(code == 1, f"a bad group: exit {code}")
    for part in ("! rank 1, arena grad: 12288 bytes, planned 16384", "! rank 2 is lost",
                 "! rank 3 is gone: it has no socket"):
        check(part in out, f"the table lacks '{part}':\n{out}")
    code, got = status("bad")
    check(code == 1 and got["good"] is False and got["ranks"][3]["state"] == "gone", "as JSON too")


def test_silent_and_gone():
    serve("ill", 0, 3)
    stopped, killed = serve("ill", 1, 3), serve("ill", 2, 3)
    os.kill(stopped.pid, signal.SIGSTOP)
    killed.kill()
    killed.wait()
    code, got = status("ill", "--deadline", "0.5")
    check(code == 1, f"silent and gone: exit {code}")
    code, out, err = zeroctl("versions", "-d", home / "ill", "--json")
    check(code == 1 and "error" in json.loads(out)["ranks"][2] and "rank 1: " in err, f"{code} {out}")
    check([r["state"] for r in got["ranks"]] == ["ready", "silent", "gone"],
          f"states {[r['state'] for r in got['ranks']]}")
    gone = f"no process listens on {home}/ill/rank-2.control: its daemon is dead, or is only starting"
    check(got["ranks"][2]["error"] == gone, f"who is dead: {got['ranks'][2]}")
    check(f"rank 2: {gone}" in err, f"in versions: {err}")
    code, out, _ = zeroctl("status", "-d", home / "ill", "--deadline", "0.5")
    check(code == 1 and f"! rank 2 is gone: {gone}" in out and "address" not in out, f"{code} {out}")
    os.kill(stopped.pid, signal.SIGCONT)
    check(status("ill")[1]["ranks"][1]["state"] == "ready", "it answers again")
    code, out, _ = zeroctl("shutdown", "-d", home / "ill", "--yes")
    check(code == 0 and "rank 2 was gone already" in out, f"shutdown of what is left: {code} {out}")


def test_search():
    env = {k: v for k, v in os.environ.items() if k != "ZERO_RUNTIME_DIR"}
    serve("one", 0, 1)
    (home / "dead").mkdir()
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(home / "dead" / "rank-0.control"))  # never listens
    one, two = str(home / "one"), str(home / "two")
    code, out, err = zeroctl("status", env=env)  # other groups may run on this host
    check((code == 0 and one in out) or (code == 3 and one in err.split()),
          f"the only group: {code} {err}")
    check(str(home / "dead") not in err, f"a socket that does not listen: {err}")
    serve("two", 0, 1)
    code, _, err = zeroctl("status", env=env)
    check(code == 3 and one in err.split() and two in err.split(), f"several: {code} {err}")
    code, out, _ = zeroctl("status", env={**env, "ZERO_RUNTIME_DIR": one})
    check(code == 0 and one in out, "ZERO_RUNTIME_DIR")
    check(zeroctl("status", "-d", home / "nothing")[0] == 3, "no folder")
    (home / "empty").mkdir()
    check(zeroctl("status", "-d", home / "empty")[0] == 3, "a folder without sockets")


def on_terminal(env, *arguments):
    ours, theirs = pty.openpty()
    run = subprocess.Popen([str(ZEROCTL)] + [str(a) for a in arguments], stdout=theirs,
                           stdin=subprocess.DEVNULL, env=env)
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            break
        text += part
        if b"\033[H" in text and text.count(b"\033[H") >= 2:
            run.send_signal(signal.SIGINT)
    os.close(ours)
    return run.wait(LIMIT), text


def test_terminal():
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    env["TERM"] = "xterm"
    code, text = on_terminal(env, "status", "-d", home / "good")
    check(code == 0 and b"\033[" in text and b"\033[?1049h" not in text, "colour on a terminal")
    code, text = on_terminal({**env, "NO_COLOR": "1"}, "status", "-d", home / "good")
    check(code == 0 and b"\033" not in text, "NO_COLOR")
    code, text = on_terminal(env, "status", "-d", home / "good", "--watch=0.05")
    check(code == 0 and text.startswith(b"\033[?1049h") and text.rstrip().endswith(b"\033[?1049l"),
          "a watch has its own screen and leaves it")


def test_plan():
    code, out, _ = zeroctl("plan", "--params", "7.5B", "--world", "64", "--stage", "3", "--dtype",
                           "bf16", "--optimizer", "adam", "--json")
    got = json.loads(out)
    per = got["per_rank"]
    check(code == 0 and got["paper"]["total"] == 1875000000, "the paper's 1.88 GB")
    check((per["param"], per["master"], per["moment1"], per["moment2"], per["grad"])
          == (234375000, 468750000, 468750000, 468750000, 468750000), f"7.5e9 on 64: {per}")
    check(per["total"] == sum(v for k, v in per.items() if k != "total"), "the total is the sum")
    check(got["versions"] == {"each": 15000000000, "most": 2}, f"versions: {got['versions']}")
    check(got["checkpoint_copy"] == 14 * 7500000000 // 64, f"a save: {got['checkpoint_copy']}")
    check(zeroctl("plan", "--params", "7.5e9", "--world", "64", "--stage", "3", "--optimizer",
                  "adam", "--json")[1] == out, "7.5e9 is 7.5B")
    layers = home / "layers.json"
    layers.write_text(json.dumps([
        {"name": "one", "tensors": [{"name": "a", "shape": [3]}, {"name": "b", "shape": [2, 300]}]},
        {"name": "two", "tensors": [{"name": "c", "shape": [5000]}]}]))
    got = json.loads(zeroctl("plan", "--layers", layers, "--world", 2, "--accumulation", 3,
                             "--json")[1])
    check(got["params"] == 5603 and got["per_rank"]["param"] == 12288
          and got["per_rank"]["master"] == 24576, f"layers: {got}")
    check(got["traffic"] == {"gathered": 73728, "reduced": 36864}, f"traffic: {got['traffic']}")
    check(got["formula"]["window"] == "2 B x min(12288, 2 x bucket 500000000)", f"{got['formula']}")
    code, out, _ = zeroctl("plan", "--layers", layers, "--stage", 2)
    check("min(8192, bucket 500000000)" in out and "reduce_bucket_size" in out, f"the bucket: {out}")
    settings = home / "bucket.json"
    settings.write_text(json.dumps({"train_batch_size": 1, "optimizer": {"type": "Adam"},
                                    "zero_optimization": {"stage": 3, "reduce_bucket_size": 2000}}))
    out = zeroctl("plan", "--layers", layers, "--config", settings)[1]
    check("min(6144, 2 x largest layer 5120)" in out, f"the largest layer: {out}")
    check("reduce_bucket_size" not in zeroctl("plan", "--params", "5", "--stage", "1")[1],
          "no bucket, nothing to explain")
    for count, part in (("1e30", "--params 1e30 is too many"), ("9e9999", "is too many"),
                        ("1.5", "whole number"), ("1e17x", "whole number"),
                        ("1e18", "does not fit in 63 bits")):
        code, out, err = zeroctl("plan", "--params", count)
        check(code in (1, 2) and part in err and out == "", f"{count} parameters: {code} {err}")
    for text, part in (("[{\"name\":\"a\"}]", "\"tensors\" must be"),
                       ("[\n{\"name\":\"a\",\"tensors\":[{\"name\":\"b\",\"shape\":[0]}]}]",
                        "line 2: a dimension"),
                       ("{}", "a list of layers"), ("[{\"name\":\"a\",\"tensors\":[],\"x\":1}]", "\"x\""),
                       ("[]", ""), ("nonsense", "")):
        layers.write_text(text)
        code, out, err = zeroctl("plan", "--layers", layers)
        check(code == 1 and part in err and out == "", f"layers '{text}': {code} {err}")


def test_codes():
    good, wrong = home / "good.json", home / "wrong.json"
    good.write_text('{"train_batch_size": 4, "optimizer": {"type": "Adam"}}')
    wrong.write_text('{"train_batch_size": 4,\n "optimiser": {"type": "Adam"}}')
    code, out, _ = zeroctl("config", "check", good, "--world", 2)
    check(code == 0 and "train_micro_batch_size_per_gpu = 2 " in out, f"config check: {code} {out}")
    check(zeroctl("config", good, "--world", 2)[1] == out, "config FILE is config check FILE")
    code, out, err = zeroctl("config", "check", wrong)
    check(code == 1 and "line 2" in err and "optimizer" in err and out == "", f"mistake: {err}")
    check(zeroctl("config", "check", home / "none.json")[0] == 4, "no such file")
    check(zeroctl("config", "check", home)[0] == 4, "a folder is not a file")
    for arguments in ((), ("stat",), ("--nope", "status"), ("status", "--nope"), ("status", "5"),
                      ("status", "--watch", "-1"), ("plan", "--params", "1.5"),
                      ("plan", "--params", "1e30"), ("plan", "--params", "-5"),
                      ("plan", "--params", "nan"), ("plan", "--params", "0x10"),
                      ("plan", "--params", "5", "--layers", "x"), ("plan", "--stage", "3"),
                      ("plan", "--params", "5", "--stage", "4"),
                      ("plan", "--params", "5", "--dtype", "fp8"),
                      ("plan", "--params", "5", "--momentum", "0.9"),
                      ("plan", "--params", "5", "--config", "x", "--stage", "1"),
                      ("plan", "--params", "5", "--world", "0"), ("config",), ("config", "check"),
                      ("config", "a", "b"), ("shutdown", "now"),
                      ("shutdown", "-d", str(home / "good"))):
        code, out, err = zeroctl(*arguments)
        check(code == 2 and err and out == "", f"usage {arguments}: exit {code}")
    check(zeroctl("--help")[0] == 0 and "Exit codes" in zeroctl("--help")[1], "--help")
    with open("/dev/full", "w") as full:
        run = subprocess.run([str(ZEROCTL), "plan", "--params", "5"], stdout=full,
                             stderr=subprocess.PIPE, timeout=LIMIT)
        check(run.returncode == 4, "a full disk")


def test_flood():
    """400 connections where 64 descriptors are allowed; afterwards it answers as before."""
    server = serve("flood", 0, 1, files=64)
    held = []
    for _ in range(400):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(home / "flood" / "rank-0.control"))  # waits where the queue is full
        peer.settimeout(LIMIT)
        held.append(peer)
    turned_away = sum(1 for peer in held[-100:] if peer.recv(1) == b"")
    check(turned_away == 100, "whoever comes when few descriptors are left is turned away")
    for peer in held:
        peer.close()
    code, got = status("flood", "--deadline", "60")
    check(code == 0 and got["ranks"][0]["state"] == "ready", f"after the flood: {got}")
    server.send_signal(signal.SIGTERM)
    check(server.wait(LIMIT) == 0, "it ends in good order")


def test_shutdown():
    code, out, err = zeroctl("shutdown", "-d", home / "good", "--yes")
    check(code == 0 and "rank 0 has ended" in out and "rank 1 has ended" in out, f"{code} {err}")
    check([p.wait(LIMIT) for p in servers[:2]] == [0, 0], "both ended in good order")
    check(not list((home / "good").iterdir()), "their sockets are gone")


try:
    for test in (test_good, test_versions, test_bad, test_silent_and_gone, test_search, test_terminal,
                 test_plan, test_codes, test_flood, test_shutdown):
        test()
finally:
    for process in servers:
        if process.poll() is None:
            process.kill()
        process.wait()
    shutil.rmtree(home)
done()
