#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""libzeroclient's calls for checkpoints do what zeroctl does, from trainers of any rank and without
trainers; and they say what is wrong when a save cannot be, or can no more be told of.
"""
import filecmp
import signal

from harness import *
import test_checkpoint_files as files
from test_save import Idle, LARGE, SPEC, ctl, same_as_dump, save, settings, steps_in

KEEPER = BUILD / "tests" / "keeper"


class Keeper:
    """A program that makes the calls, in a folder of its own."""

    def __init__(self, run=None, rank=0, cwd=None):
        env = {k: v for k, v in os.environ.items() if k != "ZERO_SOCKET"}
        if run is not None:
            env["ZERO_SOCKET"] = str(run / f"rank-{rank}.sock")
        self.process = subprocess.Popen([KEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=env, cwd=cwd)

    def tell(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline() or '{"code":"died","text":"","path":""}')

    def __call__(self, *words):
        self.tell(*words)
        return self.answer()

    def expect(self, code, part, *words):
        got = self(*words)
        check(got["code"] == code and part in got["text"], f"{words}: {got}, not {code} '{part}'")
        return got

    def close(self):
        self.process.stdin.close()
        check(self.process.wait(60) == 0, f"keeper: exit {self.process.returncode}")


def daemons(idle):
    return {r["rank"]: r["pid"] for r in status(idle.run)["ranks"]}


def whole(idle):
    """Every rank answers and is ready."""
    def fact():
        ranks = (status(idle.run) or {"ranks": []})["ranks"]
        return len(ranks) == idle.world and all(r["state"] == "ready" for r in ranks)
    until(fact, what="the group")


# ---- saves ----

def check_trainers():
    """A trainer saves while it trains: what is there is what a run to that step has."""
    for world, stage, dtype, rank in ((1, 3, "fp32", 0), (2, 3, "bf16", 1), (3, 1, "fp32", 2)):
        what = f"world {world} stage {stage} {dtype} rank {rank}"
        folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
        probe = [PROBE, "--layers", SPEC, "-q", "--steps"]
        saving = Group(world, [*probe, 2000, "--save", f"4:{rank}:{folder}/ck"],
                       config(world, stage=stage, dtype=dtype))
        check(saving.wait() == 0, f"{what}: {saving.stderr()}")
        said, = saving.rank_json(rank)
        check(said["save"] == "OK" and 4 <= said["at"], f"{what}: {said}")
        step, = steps_in(folder / "ck")
        path = folder / "ck" / f"step-{step}"
        check(said["path"] == str(path) and 4 <= step <= said["at"], f"{what}: {said}")
        plain = Group(world, [*probe, step, "--dump", folder / "dump"],
                      config(world, stage=stage, dtype=dtype))
        check(plain.wait() == 0, f"{what}: {plain.stderr()}")
        wrong = same_as_dump(path, folder / "dump", world, dtype)
        check(wrong is None, f"{what}: {wrong}")
        saving.close(), plain.close(), shutil.rmtree(folder)


def unsaid(path):
    """The manifest without what differs between two saves of the same thing."""
    manifest = json.loads((path / "manifest.json").read_text())
    return {k: v for k, v in manifest.items() if k not in ("save", "time", "checksum", "parts")}


def check_same():
    """Byte for byte what zeroctl saves; folders as a program sees them."""
    idle = Idle()
    (idle.folder / "here").mkdir()
    keeper = Keeper(idle.run, rank=1, cwd=idle.folder / "here")
    by_ctl = save(idle.run, idle.folder / "ctl").stdout.strip()
    got = keeper("save", idle.folder / "api", 60000)
    check(got["code"] == "OK" and got["path"] == f"{idle.folder}/api/step-3", f"{got}")
    for rank in range(idle.world):
        name = f"rank-{rank}.safetensors"
        check(filecmp.cmp(f"{by_ctl}/{name}", f"{got['path']}/{name}", shallow=False), name)
    check(unsaid(pathlib.Path(by_ctl)) == unsaid(pathlib.Path(got["path"])), "manifests differ")
    check(ctl("checkpoint", "verify", got["path"]).returncode == 0, "verify")
    for n in range(20):  # at once after one another: nobody is to wait for what the last one left
        keeper.expect("OK", "", "save", idle.folder / "row" / str(n), 60000)
    got = keeper("save", "deep/er", 60000)
    check(got["path"] == f"{idle.folder}/here/deep/er/step-3", f"a relative folder: {got}")
    # what has ended is told as often as it is asked for, and looking costs nothing
    keeper.expect("OK", "", "begin", 1, idle.folder / "looks", 0)
    looks = [keeper.expect("OK", "", "look", 1)]
    ends = [keeper.expect("OK", "", "wait", 1, 60000) for _ in range(2)]
    looks.append(keeper.expect("OK", "", "look", 1))
    check(ends[0] == ends[1] and ends[0]["path"] == f"{idle.folder}/looks/step-3", f"{ends}")
    check(all(l["bytes"] <= l["total"] for l in looks) and looks[-1]["total"] == 0, f"{looks}")
    # nobody sees the numbers of the save before: they only grow
    for n in range(10):
        keeper.expect("OK", "", "leave", 1)
        keeper.expect("OK", "", "begin", 1, idle.folder / "growing" / str(n), 0)
        grown = [keeper.expect("OK", "", "look", 1)["bytes"]]
        while keeper("wait", 1, 1)["code"] == "DEADLINE":
            grown.append(keeper.expect("OK", "", "look", 1)["bytes"])
        check(grown[:-1] == sorted(grown[:-1]), f"save {n}: {grown}")  # the last may be after its end
    keeper.close()
    idle.close()


def check_mistakes():
    idle = Idle()
    idle.close()
    gone = Keeper(idle.run)
    gone.expect("DEADLINE", "is zerod running?", "begin", 0, "/tmp/x", 50)
    gone.close()
    nobody = Keeper()
    nobody.expect("INVALID_ARGUMENT", "ZERO_SOCKET", "begin", 0, "/tmp/x", 50)
    nobody.expect("INVALID_ARGUMENT", "saving is NULL", "wait", 0, 50)
    nobody.close()

    idle = Idle(spec=LARGE)
    keeper = Keeper(idle.run, rank=1)
    keeper.expect("INVALID_ARGUMENT", "zerod.checkpoint.dir", "save", "-", 60000)
    keeper.expect("INVALID_ARGUMENT", "1023", "save", "/" + "x" * 1023, 60000)
    keeper.expect("IO", "/proc/nowhere", "save", "/proc/nowhere", 60000)
    (idle.folder / "file").write_text("")
    keeper.expect("IO", "Not a directory", "save", idle.folder / "file" / "x", 60000)
    check(keeper("save", idle.folder / "ck", 60000)["code"] == "OK", "a good one after bad ones")
    keeper.expect("OK", "", "save", idle.folder / "ck", 60000)
    check(os.listdir(idle.folder / "ck") == ["step-3"] and steps_in(idle.folder / "ck") == [3], "twice")

    # rank 1 does not answer: the first save is on its way for as long as we want
    rank_1 = daemons(idle)[1]
    os.kill(rank_1, signal.SIGSTOP)
    keeper.expect("OK", "", "begin", 1, idle.folder / "first", 0)
    keeper.expect("DEADLINE", "wait again", "wait", 1, 0)
    keeper.expect("DEADLINE", "wait again", "wait", 1, 100)
    keeper.expect("BUSY", f"{idle.folder}/first", "save", idle.folder / "second", 60000)
    check(save(idle.run, idle.folder / "second").stderr.find("another save") >= 0, "zeroctl too")
    keeper.expect("OK", "", "look", 1)
    os.kill(rank_1, signal.SIGCONT)
    got = keeper.expect("OK", "", "wait", 1, 60000)
    check(got["path"] == f"{idle.folder}/first/step-3", f"{got}")
    check(not (idle.folder / "second").exists(), "the second was not begun")
    keeper.close()
    idle.close()


def check_no_model():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    process = subprocess.Popen([ZERORUN, "-n", "1", "--runtime-dir", folder / "run",
                                "--daemons-only"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    keeper = Keeper(folder / "run")
    keeper.expect("INVALID_STATE", "no model", "save", folder / "ck", 60000)
    keeper.expect("INVALID_STATE", "no model", "save", "-", 60000)
    check(not (folder / "ck").exists(), "a folder without a checkpoint")
    keeper.close()
    process.terminate()
    process.wait(60)
    shutil.rmtree(folder)


def check_endings():
    """Whoever dies meanwhile: a save goes on without who asked, and fails without a daemon."""
    idle = Idle()
    pids = daemons(idle)
    os.kill(pids[1], signal.SIGSTOP)
    keeper = Keeper(idle.run)
    keeper.expect("OK", "", "begin", 0, idle.folder / "left", 0)
    keeper.process.kill()
    keeper.process.wait()
    os.kill(pids[1], signal.SIGCONT)
    keeper = Keeper(idle.run, rank=1)
    until(lambda: keeper("save", idle.folder / "next", 60000)["code"] != "BUSY", what="its end")
    check(steps_in(idle.folder / "left") == [3], "the save of a program that died")
    os.kill(pids[1], signal.SIGSTOP)
    keeper.expect("OK", "", "begin", 0, idle.folder / "rank-1-dies", 0)
    os.kill(pids[1], signal.SIGKILL)
    keeper.expect("PEER_LOST", "", "wait", 0, 60000)
    whole(idle)
    pids = daemons(idle)
    os.kill(pids[1], signal.SIGSTOP)
    keeper.expect("OK", "", "begin", 1, idle.folder / "rank-0-dies", 0)
    os.kill(pids[0], signal.SIGKILL)
    keeper.expect("DAEMON_LOST", "save again", "wait", 1, 60000)
    keeper.expect("OK", "", "look", 1)
    keeper.expect("DAEMON_LOST", "save again", "wait", 1, 0)
    os.kill(pids[1], signal.SIGCONT)
    whole(idle)
    check(keeper("save", idle.folder / "after", 60000)["code"] == "OK", "a save after all")
    check(not list(idle.folder.glob("rank-?-dies/step-*[0-9]")), "a save that failed left one")
    keeper.close()
    idle.close()


def check_stopping():
    """A daemon that is told to end brings the save to its end, and says so."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    idle = Idle(text=settings(folder / "config", 2))
    keeper = Keeper(idle.run)
    got = keeper("save", "-", 60000)
    check(got["path"] == f"{folder}/config/step-3", f"the config's folder: {got}")
    pids = daemons(idle)
    os.kill(pids[1], signal.SIGSTOP)
    keeper.expect("OK", "", "begin", 0, folder / "stopping", 0)
    os.kill(pids[0], signal.SIGTERM)
    keeper.expect("DEADLINE", "", "wait", 0, 200)
    os.kill(pids[1], signal.SIGCONT)
    got = keeper.expect("OK", "", "wait", 0, 60000)
    check(got["path"] == f"{folder}/stopping/step-3", f"{got}")
    keeper.close()
    idle.close()
    shutil.rmtree(folder)


# ---- files ----

def damage(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def same_folder(one, other):
    seen = filecmp.dircmp(one, other)
    return not (seen.left_only or seen.right_only) and \
        filecmp.cmpfiles(one, other, seen.common_files, shallow=False)[1:] == ([], [])


def check_looking(keeper, folder, path):
    """list, verify, prune beside zeroctl's."""
    (folder / "saves" / "step-7.partial-1-00").mkdir()
    (folder / "saves" / "step-8").mkdir()
    listed = json.loads(ctl("checkpoint", "list", "--json", folder / "saves").stdout)
    got = keeper.expect("OK", "", "list", folder / "saves")
    check(got["list"] == listed and len(listed) == 5, f"{got['list']}, not {listed}")
    keeper.expect("NOT_FOUND", "nowhere", "list", folder / "nowhere")

    for broken in (None, "rank-0.safetensors", "rank-1.safetensors", "manifest.json"):
        if broken is not None:
            damage(path / broken, (path / broken).stat().st_size // 2)
        run = ctl("checkpoint", "verify", "--json", path)
        found = json.loads(run.stdout)
        first = found["problems"][0] if found["problems"] else ""
        got = keeper.expect("CORRUPT" if broken else "OK", first, "verify", path)
        check(run.returncode == (1 if broken else 0), f"{broken}: {run}")
        check({k: got[k] for k in found} == found, f"{broken}: {got}, not {found}")
    damage(path / "manifest.json", (path / "manifest.json").stat().st_size // 2)
    for rank in range(2):
        name = path / f"rank-{rank}.safetensors"
        damage(name, name.stat().st_size // 2)
    keeper.expect("OK", "", "verify", path)
    keeper.expect("NOT_FOUND", "", "verify", folder / "nowhere")

    shutil.copytree(folder / "saves", folder / "copy")
    run = ctl("checkpoint", "prune", "--keep", 2, folder / "copy")
    got = keeper.expect("OK", "", "prune", folder / "saves", 2)
    check(run.stdout == f"{got['removed']} removed\n" and got["removed"] == 2, f"{got}, {run}")
    check(sorted(os.listdir(folder / "copy")) == sorted(os.listdir(folder / "saves")), "prune")
    keeper.expect("INVALID_ARGUMENT", "at least one", "prune", folder / "saves", 0)


def check_moving(keeper, folder, path):
    """export, import beside zeroctl's."""
    for dtype, most in (("fp32", 0), ("bf16", 0), ("fp16", 500000), ("fp32", 100000)):
        ends = folder / f"export-{dtype}-{most}", folder / f"ctl-{dtype}-{most}"
        got = keeper.expect("OK", "", "export", path, ends[0], dtype, most)
        words = ("--max-shard-size", most) if most else ()
        run = ctl("checkpoint", "export", path, ends[1], "--dtype", dtype, *words)
        check(run.returncode == 0 and same_folder(*ends), f"{dtype} {most}: {run}")
        names = list(ends[0].glob("*.safetensors"))
        check(got["files"] == len(names) and (got["files"] > 1) == (most > 0), f"{got}")
    keeper.expect("INVALID_STATE", "", "export", path, ends[0], "fp32", 0)
    keeper.expect("NOT_FOUND", "", "export", folder / "nowhere", folder / "e", "fp32", 0)

    source = folder / "export-fp32-0"
    for name, model in (("names", "-"), ("model", path)):
        got = keeper.expect("OK", "", "import", folder / name, model, source)
        words = () if model == "-" else ("--model", model)
        run = ctl("checkpoint", "import", source, "--out", folder / f"ctl-{name}", *words)
        own, other = folder / name / "step-0", folder / f"ctl-{name}" / "step-0"
        check(got["path"] == str(own) and unsaid(own) == unsaid(other), f"{name}: {got}")
        check(filecmp.cmp(own / "rank-0.safetensors", other / "rank-0.safetensors", shallow=False),
              f"{name}: other bytes")
        said = f"{other}: {got['parameters']} parameters in {got['layers']} layers\n"
        check(run.stdout == said, f"{name}: {run.stdout} {said}")
    keeper.expect("INVALID_STATE", "step-0", "import", folder / "names", "-", source)
    keeper.expect("NOT_FOUND", "nowhere", "import", folder / "other", "-", folder / "nowhere")
    keeper.expect("INVALID_ARGUMENT", "no file", "import", folder / "other", "-")
    check(not (folder / "other").exists(), "imports that failed")


def check_files():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    for step in (1, 2, 3):
        path = files.checkpoint(folder / "saves", 2, "bf16", 3, step)
    keeper = Keeper()
    check_looking(keeper, folder, path)
    check_moving(keeper, folder, path)
    keeper.close()
    check(not files.failures, "see above")
    shutil.rmtree(folder)


def main():
    for part in (check_trainers, check_same, check_mistakes, check_no_model, check_endings,
                 check_stopping, check_files):
        begun = time.monotonic()
        part()
        print(f"{part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
    done()


if __name__ == "__main__":
    main()
