#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""What a group saves is what its trainers read at that step, whatever happens to trainers, daemons and
disk meanwhile; and a group that saves trains as one that does not.
"""
import random
import re
import signal

from harness import *
from test_checkpoint_files import collect

SPEC = "a:3x5,7;b:1000;c:1,300x40"
LARGE = "a:1500x1500;b:1500x1500"
LAST = re.compile(r"step-(\d+)$")


def settings(folder, world, stage=3, dtype="fp32", **checkpoint):
    out = config(world, stage=stage, dtype=dtype)
    out["zerod"]["checkpoint"] = {"dir": str(folder), **checkpoint}
    return out


def ctl(*words):
    return subprocess.run([ZEROCTL, *map(str, words)], capture_output=True, text=True, timeout=LIMIT)


def save(runtime, *words):
    return ctl("--runtime-dir", runtime, "checkpoint", "save", *words)


def steps_in(folder):
    """The complete ones; nothing else may be there."""
    run = ctl("checkpoint", "list", "--json", folder)
    found = json.loads(run.stdout) if run.returncode == 0 else []
    return [c["step"] for c in found if c["complete"]]


def shard_total(spec, world, dtype):
    """Elements of a rank: each tensor begins at a multiple of 256, each shard is whole pages."""
    unit = max(256, 4096 // (4 if dtype == "fp32" else 2))
    layers = {}
    for layer, shape in shapes_of(spec):
        layers[layer] = layers.get(layer, 0) + -(-int(numpy.prod(shape)) // 256) * 256
    return sum(-(-flat // (unit * world)) * unit for flat in layers.values())


def joined(pieces):
    return numpy.concatenate([pieces[first] for first in sorted(pieces)])


def same_as_dump(path, dump, world, dtype):
    """Every state of every tensor, bit for bit."""
    found, want = collect(path, world), read_dump(dump, SPEC)
    manifest = json.loads((path / "manifest.json").read_text())
    names = [tensor["name"] for layer in manifest["layers"] for tensor in layer["tensors"]]
    for state in ("master", "moment1", "moment2") + (("param",) if dtype != "fp32" else ()):
        for t, array in enumerate(want[state]):
            got = joined(found[f"{state}/{names[t]}"])
            if got.tobytes() != array.tobytes():
                return f"{state} of tensor {t} ({names[t]})"
    return None


def check_content():
    """The last step of a run, which its trainer also dumps; no checkpoint changes what is trained."""
    for world, stage, dtype in ((1, 3, "fp32"), (2, 0, "bf16"), (3, 1, "fp32"), (2, 2, "fp16"),
                                (3, 3, "bf16"), (2, 3, "fp16"), (4, 0, "fp32")):
        what = f"world {world} stage {stage} {dtype}"
        folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
        plain = Group(world, [PROBE, "--layers", SPEC, "--steps", 7, "--dump", folder / "plain", "-q"],
                      config(world, stage=stage, dtype=dtype))
        saving = Group(world, [PROBE, "--layers", SPEC, "--steps", 7, "--dump", folder / "dump", "-q"],
                       settings(folder / "ck", world, stage, dtype, every_steps=2, keep=2))
        check(plain.wait() == 0 and saving.wait() == 0, f"{what}: {plain.stderr()}{saving.stderr()}")
        check((folder / "plain").read_bytes() == (folder / "dump").read_bytes(),
              f"{what}: saving changes what is trained")
        check(steps_in(folder / "ck")[-1:] == [7], f"{what}: {steps_in(folder / 'ck')}")
        check(len(list((folder / "ck").glob("step-*"))) <= 2, f"{what}: more than 2 are kept")
        wrong = same_as_dump(folder / "ck" / "step-7", folder / "dump", world, dtype)
        check(wrong is None, f"{what}: {wrong}")
        run = ctl("checkpoint", "verify", folder / "ck" / "step-7")
        check(run.returncode == 0, f"{what}: {run.stdout}{run.stderr}")
        manifest = json.loads((folder / "ck" / "step-7" / "manifest.json").read_text())
        check("every_steps" in manifest["config"], f"{what}: no config in the manifest")
        log = saving.stderr()
        wrote = {int(r): int(b) for r, b in re.findall(r"\[zerod (\d+)\] .*: wrote (\d+) bytes", log)}
        planned = 4 * 3 + (2 if dtype != "fp32" else 0)
        check(len(wrote) == world and all(0 <= b - planned * shard_total(SPEC, world, dtype) < 65536
                                          for b in wrote.values()), f"{what}: {wrote}")
        plain.close(), saving.close(), shutil.rmtree(folder)


def check_periodic():
    """Each is of its step exactly: rank 0 holds the next step off until all have copied."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    group = Group(2, [PROBE, "--layers", SPEC, "--steps", 300, "-q"],
                  settings(folder / "ck", 2, every_steps=50, keep=0))
    check(group.wait() == 0, group.stderr())
    missed = [int(n) for n in re.findall(r"no periodic checkpoint at step (\d+)", group.stderr())]
    skipped = len(missed)
    check(all(step % 50 == 0 for step in missed), f"missed at {missed}")
    found = steps_in(folder / "ck")
    check(300 in found and all(step % 50 == 0 for step in found) and len(found) + skipped >= 6,
          f"{found}, {skipped} skipped")
    group.close()
    group = Group(2, [PROBE, "--layers", SPEC, "--steps", 2000000, "-q"],
                  settings(folder / "minutes", 2, every_minutes=0.002, keep=1))
    until(lambda: len(re.findall(r"checkpoint \S+/step-\d+: training", group.stderr())) >= 3,
          what="three checkpoints by time")
    group.process.send_signal(signal.SIGTERM)
    group.wait()
    check(len(steps_in(folder / "minutes")) == 1, "keep 1")
    group.close()
    shutil.rmtree(folder)


def check_end():
    """Who could not save the last step does not end as if all were well."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    idle = Idle(text=settings(folder / "ck", 2))
    shutil.rmtree(folder / "ck")
    (folder / "ck").write_text("")
    idle.process.terminate()
    code, log = idle.process.wait(60), idle.text()
    check(f"the last step, 3, is not saved in {folder}/ck: rank 0: {folder}/ck cannot be used as a "
          "folder: Not a directory" in log and "zerod 0 ended with exit code 74" in log, f"exit {code}: {log}")
    idle.close()
    shutil.rmtree(folder)


class Idle:
    """Daemons that stay, a model that is trained for some steps, trainers that are gone or stopped."""

    def __init__(self, spec=SPEC, world=2, text=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
        self.world, self.spec = world, spec
        self.config = self.folder / "config.json"
        self.config.write_text(json.dumps(text or config(world, stage=3, dtype="bf16")))
        self.run = self.folder / "run"
        self.log = open(self.folder / "log", "w")
        self.process = subprocess.Popen(
            [ZERORUN, "-n", str(world), "--runtime-dir", self.run, "--daemons-only"],
            stdout=subprocess.DEVNULL, stderr=self.log, stdin=subprocess.DEVNULL)
        atexit.register(self.close)
        until(lambda: (self.run / f"rank-{world - 1}.control").exists(), what="daemons")
        self.train(3)

    def start(self, steps):
        return [subprocess.Popen([PROBE, "--layers", self.spec, "--steps", str(steps), "-q"],
                                 env={**os.environ, "ZERO_CONFIG": str(self.config), "RANK": str(r),
                                      "WORLD_SIZE": str(self.world),
                                      "ZERO_SOCKET": str(self.run / f"rank-{r}.sock")},
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True) for r in range(self.world)]

    def train(self, steps):
        for trainer in self.start(steps):
            _, err = trainer.communicate(timeout=LIMIT)
            check(trainer.returncode == 0, f"trainer: {err}")

    def text(self):
        return (self.folder / "log").read_text()

    def close(self):
        atexit.unregister(self.close)
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def check_by_hand():
    """Without trainers, with hung ones, into odd places, twice at once."""
    idle = Idle()
    run = save(idle.run, idle.folder / "new" / "deep")
    check(run.returncode == 0 and run.stdout == f"{idle.folder}/new/deep/step-3\n", str(run))
    run = save(idle.run, idle.folder / "new" / "deep")
    check(run.returncode == 0 and run.stdout == f"{idle.folder}/new/deep/step-3\n", f"twice: {run}")
    check(os.listdir(idle.folder / "new" / "deep") == ["step-3"] and
          steps_in(idle.folder / "new" / "deep") == [3] and "another step-3" not in idle.text(),
          f"twice: {os.listdir(idle.folder / 'new' / 'deep')} {idle.text()}")
    check(ctl("checkpoint", "verify", run.stdout.strip()).returncode == 0, "twice")
    taken = idle.folder / "new" / "taken"
    (taken / "step-3").mkdir(parents=True)
    run = save(idle.run, taken)
    check(run.stdout == f"{taken}/step-3\n", f"a folder of that name: {run}")
    check(f"{taken} had another step-3: that is step-3.replaced-1 now" in idle.text() and
          sorted(os.listdir(taken)) == ["step-3", "step-3.replaced-1"] and steps_in(taken) == [3],
          f"a folder of that name: {os.listdir(taken)} {idle.text()}")
    (idle.folder / "file").write_text("")
    save(idle.run, idle.folder / "file")
    told = status(idle.run)["ranks"][0]["checkpoint"]
    check(told["step"] == 3 and told["age"] >= 0 and told["failed"], f"status: {told}")
    until(lambda: status(idle.run)["ranks"][0]["checkpoint"]["saving_total"] == 0, what="none saves")
    run = ctl("--runtime-dir", idle.run, "status")
    check("checkpoint: step 3, " in run.stdout and "THE LAST ONE FAILED" in run.stdout, run.stdout)
    for words, part in (((idle.folder / "file",), "file cannot be used as a folder: Not a directory"),
                        ((idle.folder / "file" / "x",), "Not a directory"),
                        (("/proc/nowhere",), "/proc/nowhere"), ((), "zerod.checkpoint.dir"),
                        (("x" * 2000,), "bytes"), (("",), "no folder")):
        run = save(idle.run, *words)
        check(run.returncode in (1, 2) and part in run.stderr, f"{words}: {run}")
    trainers = idle.start(1000000)
    until(lambda: status(idle.run)["ranks"][0]["step"] > 10, what="steps")
    for trainer in trainers:
        trainer.send_signal(signal.SIGSTOP)
    run = save(idle.run, idle.folder / "hung")
    check(run.returncode == 0 and LAST.search(run.stdout.strip()), f"hung trainers: {run}")
    for trainer in trainers:
        trainer.kill()
        trainer.communicate()
    check(ctl("checkpoint", "verify", run.stdout.strip()).returncode == 0, "of hung trainers")
    idle.close()


def check_full_disk():
    """A disk that fills up, and one that may not be written: an error, the older checkpoints as they
    were, and training goes on."""
    script = """mount -t tmpfs -o size=6m none "$1/small" && touch "$1/mounted" || exit 77
    while [ ! -e "$1/over" ]; do sleep 0.05; done"""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    (folder / "small").mkdir()
    room = subprocess.Popen(["unshare", "-m", "sh", "-c", script, "-", folder])
    until(lambda: room.poll() is not None or (folder / "mounted").exists(), what="a mount")
    if room.poll() is not None:
        print("no file system of our own can be mounted here: the full disk is left out")
        return
    small = pathlib.Path(f"/proc/{room.pid}/root{folder}/small")
    idle = Idle(spec="a:300x300")  # bf16 Adam: 1.3 MB
    for step in range(3, 20):
        idle.train(step)
        run = save(idle.run, small / "ck")
        if run.returncode != 0:
            break
    check(run.returncode == 1 and "No space left" in run.stderr, str(run))
    check(steps_in(small / "ck") == list(range(3, step)), f"{steps_in(small / 'ck')}")
    for old in steps_in(small / "ck"):
        check(ctl("checkpoint", "verify", small / "ck" / f"step-{old}").returncode == 0, f"step {old}")
    check(ctl("checkpoint", "prune", "--keep", 1, small / "ck").returncode == 0, "prune")
    idle.train(step + 1)
    run = save(idle.run, small / "ck")
    check(run.returncode == 0 and run.stdout.endswith(f"step-{step + 1}\n"), f"with room: {run}")
    check(len(list((small / "ck").iterdir())) == 2, "what failed is gone")
    idle.train(step + 2)
    subprocess.run(["nsenter", "-m", "-t", str(room.pid), "mount", "-o", "remount,ro",
                    folder / "small"], check=True)
    run = save(idle.run, small / "ck")
    check(run.returncode == 1 and "Read-only file system" in run.stderr, f"read-only: {run}")
    check(steps_in(small / "ck")[-1] == step + 1, "read-only: what was there stays")
    idle.train(step + 3)
    idle.close()
    (folder / "over").touch()
    room.wait(60)
    shutil.rmtree(folder)


def check_two_at_once():
    idle = Idle(spec=LARGE)
    first, second = (subprocess.Popen([ZEROCTL, "--runtime-dir", idle.run, "checkpoint", "save",
                                       idle.folder / name], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True) for name in "xy")
    outs = [p.communicate(timeout=LIMIT) for p in (first, second)]
    codes = sorted((first.returncode, second.returncode))
    check(codes in ([0, 1], [0, 0]), f"{codes} {outs}")
    for (out, err), p in zip(outs, (first, second)):
        check(p.returncode == 0 or "another save" in err, f"{out}{err}")
        check(p.returncode != 0 or ctl("checkpoint", "verify", out.strip()).returncode == 0, out)
    idle.close()


def check_deaths(kills=12):
    """A daemon dies at some moment of a save: the save fails or is whole, the group goes on."""
    idle = Idle(spec=LARGE)
    folder, good = idle.folder / "ck", 0
    for kill in range(kills):
        saving = subprocess.Popen([ZEROCTL, "--runtime-dir", idle.run, "checkpoint", "save",
                                   folder / str(kill)], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        time.sleep(random.uniform(0, 0.25))  # when, not how long to wait for something
        pids = [r["pid"] for r in status(idle.run)["ranks"] if r.get("pid")]
        if pids:
            os.kill(random.choice(pids), signal.SIGKILL)
        out, err = saving.communicate(timeout=LIMIT)
        check(saving.returncode in (0, 1), f"kill {kill}: {saving.returncode} {out}{err}")
        if saving.returncode == 0:
            good += 1
            run = ctl("checkpoint", "verify", out.strip())
            check(run.returncode == 0, f"kill {kill}: {run.stdout}{run.stderr}")
        elif (folder / str(kill)).exists():
            check(steps_in(folder / str(kill)) in ([], [3]), f"kill {kill}: {steps_in(folder)}")
        until(lambda: all(r["state"] == "ready" for r in status(idle.run)["ranks"]) and
              len(status(idle.run)["ranks"]) == 2, what=f"the group after kill {kill}")
    run = save(idle.run, folder / "end")
    check(run.returncode == 0 and ctl("checkpoint", "verify", run.stdout.strip()).returncode == 0,
          f"after all: {run}")
    print(f"{kills} daemons killed while a save was on its way, {good} saves whole")
    idle.train(5)
    idle.close()


def main():
    for part in (check_content, check_periodic, check_end, check_by_hand, check_full_disk,
                 check_two_at_once, check_deaths):
        begun = time.monotonic()
        part()
        print(f"{part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
    done()


if __name__ == "__main__":
    main()
