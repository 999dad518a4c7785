#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""A training goes on from a checkpoint: with the same bits at the same world size, within rounding at
another; in any stage and type; whatever dies while it is read. What does not fit is refused.
"""
import math
import re
import signal

from harness import *
from holder import Holder

WORLD, AT, END = 4, 8, 16  # saved by so many ranks, at this step; runs end here
BATCH = 24  # so that 1, 2, 3, 4 and 8 ranks divide it
BOOK = SOURCE / "tests" / "data" / "devils-dictionary.txt"
SHAPE = ["--text", BOOK, "--width", "16", "--heads", "2", "--seq", "16"]
LAST = re.compile(r"weights sha256=(\w+) step=(\d+)")
FAULTS = BUILD / "tests" / "libfaults.so"
ZEROD = BUILD / "daemon" / "zerod"
ADAMW = {"type": "AdamW", "params": {"lr": 3e-3}}
SCALE = {"initial_scale_power": 10, "loss_scale_window": 3, "hysteresis": 1}

folder = pathlib.Path(tempfile.mkdtemp(prefix="zres-"))


def settings(dtype="fp32", stage=3, optimizer=ADAMW, checkpoints=None):
    out = {"train_batch_size": BATCH, "optimizer": optimizer,
           "zero_optimization": {"stage": stage}, "zerod": {"wait_timeout_seconds": 60}}
    if dtype != "fp32":
        out[dtype] = {"enabled": True, **(SCALE if dtype == "fp16" else {})}
    if checkpoints:
        out["zerod"]["checkpoint"] = {"dir": str(checkpoints)}
    return out


class Run:
    """A group to its end: the losses by step, the last line, what was logged."""

    def __init__(self, world, config, steps=END, options=(), shape=SHAPE, env=None):
        log = folder / "log"
        log.unlink(missing_ok=True)
        group = Group(world, [GPT, *shape, "--steps", steps, "--log", log], config, options, env)
        self.code = group.wait()
        self.text = group.stderr()
        lines = [json.loads(l) for l in log.read_text().splitlines()] if log.exists() else []
        self.losses = {line["step"]: line["loss"] for line in lines}
        self.scales = {line["step"]: line["loss_scale"] for line in lines}
        found = LAST.search(group.stdout())
        self.sha, self.step = (found[1], int(found[2])) if found else (None, None)
        group.close()

    def says(self, text):
        return text in self.text


def restored(path, *more):
    return ["--restore", path, *more]


def succeed(run, what, step=END):
    check(run.code == 0 and run.step == step, f"{what}: code {run.code}, step {run.step}\n"
          + run.text[-1500:])
    return run


def refused(run, what, *texts):
    check(run.code == 1 and run.sha is None, f"{what}: code {run.code}, {run.sha}")
    for text in texts:
        check(run.says(text), f"{what}: nothing about {text!r}\n{run.text[-1500:]}")


def near(a, b, most):
    return a.keys() == b.keys() and all(abs(a[s] - b[s]) <= most * abs(b[s]) for s in a)


def tail(losses, first=AT):
    return {s: l for s, l in losses.items() if s >= first}


def save(dtype, steps=AT, **more):
    """A checkpoint of a run of WORLD ranks at stage 3, which ends then; its folder's path."""
    place = folder / f"{dtype}-{steps}-{len(list(folder.iterdir()))}"
    run = Run(WORLD, settings(dtype, checkpoints=place, **more), steps)
    succeed(run, f"save {dtype}", steps)
    check((place / f"step-{steps}").is_dir(), f"save {dtype}: no checkpoint\n{run.text[-1500:]}")
    return place, run


# ---- the same training ------------------------------------------------------------------------------


def same_type(dtype):
    whole = succeed(Run(WORLD, settings(dtype)), f"{dtype}: undisturbed")
    place, before = save(dtype)
    for stage in range(4):
        what = f"{dtype}, {WORLD} ranks, stage {stage}"
        run = succeed(Run(WORLD, settings(dtype, stage), options=restored(place)), what)
        check(run.losses == tail(whole.losses) and run.sha == whole.sha,
              f"{what}: {run.losses}, not {tail(whole.losses)}")
        check(run.scales == tail(whole.scales), f"{what}: loss scales {run.scales}")
    if dtype == "fp16":
        check(len(set(whole.scales.values())) > 1 and whole.scales[AT] != whole.scales[0],
              f"the loss scale did not move: {whole.scales}")
    return whole, place, before


def other_worlds(dtype, whole, place, before, most):
    for world in (1, 2, 3, 8):
        shas = set()
        for stage in range(4):
            what = f"{dtype}, {world} ranks, stage {stage}"
            still = Run(world, settings(dtype, stage), AT, restored(place))
            succeed(still, what, AT)
            check(still.sha == before.sha, f"{what}: other weights than were saved")
            run = Run(world, settings(dtype, stage), options=restored(place))
            succeed(run, what)
            check(near(run.losses, tail(whole.losses), most),
                  f"{what}: {run.losses}, not {tail(whole.losses)}")
            check(run.says("blobs are dropped"), f"{what}: nothing about blobs")
            shas.add(run.sha)
        check(len(shas) == 1, f"{dtype}, {world} ranks: stages differ")


def other_types(wholes, places, befores):
    for old in ("fp32", "bf16", "fp16"):
        for new in ("fp32", "bf16", "fp16"):
            if new == old:
                continue
            what = f"{old} to {new}"
            still = succeed(Run(2, settings(new, 2), AT, restored(places[old])), what, AT)
            check(still.sha == befores[old].sha, f"{what}: other weights than were saved")
            check(still.says(f"in {old}; restored at world size 2, stage 2, in {new}"), f"{what}: not told")
            run = succeed(Run(WORLD, settings(new), options=restored(places[old])), what)
            check(near(run.losses, tail(wholes[old].losses), 0.02),
                  f"{what}: {run.losses}, not {tail(wholes[old].losses)}")


# ---- weights alone, other layers ---------------------------------------------------------------------


def zeroctl(*words):
    run = subprocess.run([ZEROCTL, *map(str, words)], capture_output=True, text=True, timeout=60)
    check(run.returncode == 0, f"zeroctl {words}: {run.stderr}")


def grouped_model():
    """gpt's model with its tensors in two layers, from the last to the first."""
    run = subprocess.run([GPT, *map(str, SHAPE), "--layers-json"], capture_output=True, text=True)
    tensors = [t for layer in json.loads(run.stdout) for t in layer["tensors"]][::-1]
    path = folder / "grouped.json"
    path.write_text(json.dumps([{"name": "x", "tensors": tensors[:5]},
                                {"name": "y", "tensors": tensors[5:]}]))
    return path


def weights(place, before):
    """Without the optimizer's state, and by way of Hugging Face's format with other layers."""
    zeroctl("checkpoint", "export", place / f"step-{AT}", folder / "hf")
    zeroctl("checkpoint", "import", folder / "hf", "--out", folder / "imported", "--model",
            grouped_model())
    runs = []
    for options in (restored(place, "--weights-only"), restored(folder / "imported")):
        still = succeed(Run(3, settings(), 0, options), f"{options}", 0)
        check(still.sha == before.sha, f"{options}: other weights than were saved")
        runs.append(succeed(Run(WORLD, settings("bf16", 2), 5, options), f"{options}", 5))
    check(runs[0].sha == runs[1].sha and list(runs[0].losses) == list(range(5)),
          f"weights alone: {runs[0].losses} and {runs[1].losses}")
    check(runs[0].losses[0] < 0.95 * 4.85, f"untrained weights: {runs[0].losses}")  # ln 128


def optimizers(place):
    run = Run(WORLD, settings(optimizer={"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}),
              options=restored(place))
    refused(run, "Adam to SGD with momentum", "MISMATCH", "--weights-only")
    run = Run(WORLD, settings(optimizer={"type": "SGD", "params": {"lr": 0.1}}),
              options=restored(place))
    check(succeed(run, "Adam to SGD").says("they are dropped"), "Adam to SGD: nothing told")
    amsgrad = {"type": "AdamW", "params": {"lr": 3e-3, "amsgrad": True}}
    run = Run(WORLD, settings(optimizer=amsgrad), options=restored(place))
    check(succeed(run, "amsgrad").says("the maximum begins at zero"), "amsgrad: nothing told")


# ---- which checkpoint --------------------------------------------------------------------------------


def by_config(place, whole):
    """zerod.checkpoint.dir alone: a group whose memory is gone goes on, and saves where it ends."""
    own = folder / "own"
    first = succeed(Run(WORLD, settings(checkpoints=own), AT), "a first run", AT)
    check(first.says("has no checkpoint yet: the model starts anew"), "nothing about a new start")
    second = succeed(Run(WORLD, settings(checkpoints=own)), "a second run")
    check(second.losses == tail(whole.losses) and second.sha == whole.sha, "the second run differs")
    check((own / f"step-{END}").is_dir(), "the second run saved nothing")
    third = succeed(Run(WORLD, settings(checkpoints=own), END), "a third run")
    check(third.losses == {} and third.sha == whole.sha and not third.says("warning"),
          f"the third run did something\n{third.text}")
    given = Run(WORLD, settings(checkpoints=own), AT + 1, restored(place / f"step-{AT}"))
    succeed(given, "--restore and a folder", AT + 1)
    check(given.says(f"has a checkpoint of step {END}"), "nothing about later steps")
    shutil.rmtree(own / f"step-{AT + 1}")
    return own


def damage(path, at, by=b"!"):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(by)


def damaged(own):
    """Of two checkpoints: the newer is incomplete, then the older is damaged."""
    newest, older = own / f"step-{END}", own / f"step-{AT}"
    (newest / "manifest.json").rename(folder / "manifest")
    run = succeed(Run(2, settings(checkpoints=own), AT + 1), "the older one", AT + 1)
    check(run.says(f"passing over {newest}: ") and run.says(f"step {AT} from {older}"),
          f"the older one: not told\n{run.text[-1500:]}")
    shutil.rmtree(own / f"step-{AT + 1}")
    refused(Run(2, settings(), options=restored(newest)), "no manifest", "manifest.json")
    data = older / "rank-1.safetensors"
    damage(data, data.stat().st_size - 60000)
    refused(Run(2, settings(), options=restored(own)), "damaged", "CORRUPT", "rank-1.safetensors",
            str(older))
    damage(older / "manifest.json", 50)
    refused(Run(2, settings(checkpoints=own)), "nothing whole", "CORRUPT", "start anew")


def other_model(place):
    run = Run(2, settings(), shape=[*SHAPE[:2], "--width", "32", "--heads", "2", "--seq", "16",
                                    "--layers", "1"], options=restored(place))
    refused(run, "other model", "MISMATCH", "wte is [128,16] in the checkpoint and [128,32] in the "
            "model", "1.ln1.g [16] is not in the model")


def usage():
    for options, text in ((["--restore", "/nowhere"], "/nowhere: No such file"),
                          (["--weights-only"], "--restore PATH")):
        run = Run(1, settings(), options=options)
        check(run.code == 64 and run.says(text), f"{options}: {run.code} {run.text}")
    run = Run(1, settings(), options=restored(BOOK.parent))
    refused(run, "no folder of checkpoints", "NOT_FOUND", str(BOOK.parent))


# ---- deaths ------------------------------------------------------------------------------------------


def killed_while_reading(place, whole):
    """A daemon dies at its n-th read from the checkpoint, or of its peers' models; for every n."""
    wrapper, marker, n = folder / "zerod", folder / "died", 0
    wrapper.write_text(f'#!/bin/sh\nif [ "$2" = 1 ] && mkdir {marker} 2>/dev/null; then\n'
                       f'export LD_PRELOAD={FAULTS} FAULT_CALL=pread FAULT_KIND=kill\nfi\n'
                       f'exec {ZEROD} "$@"\n')
    wrapper.chmod(0o755)
    struck = True
    while struck:
        n += 1
        shutil.rmtree(marker, ignore_errors=True)
        run = Run(WORLD, settings("bf16"), AT + 1,
                  restored(place, "--zerod", wrapper, "--restart-delay", "0"),
                  env={"FAULT_AT": str(n)})
        succeed(run, f"killed at read {n}", AT + 1)
        check(run.losses == {AT: whole.losses[AT]}, f"killed at read {n}: {run.losses}")
        struck = run.says("fault: pread")
        check(struck == run.says("zerod 1 was killed by signal 9"), f"read {n}: {run.text[-1500:]}")
    print(f"killed at each of {n - 1} reads", flush=True)
    check(n > 10, f"only {n - 1} reads")


def trainer(holder, rank, config, steps):
    env = {**os.environ, "ZERO_SOCKET": holder.socket_of(rank), "RANK": str(rank),
           "WORLD_SIZE": str(holder.world), "ZERO_CONFIG": str(config), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([str(w) for w in (GPT, *SHAPE, "--steps", steps)], env=env, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def together(holder, config, steps, ranks=None):
    """[(exit code, stdout, stderr)] of a trainer a rank."""
    processes = [trainer(holder, r, config, steps) for r in ranks or range(holder.world)]
    return [(p.wait(LIMIT), *p.communicate()) for p in processes]


def lodged(holder, rank):
    with holder.lock:
        return "model" in holder.kept[rank]


def killed_before_a_step(place, whole):
    """All daemons die when all is read and nothing is done, some before the group has met. Their
    successors go on from memory, and say that they do."""
    config = folder / "config.json"
    config.write_text(json.dumps(settings()))
    holder = Holder(WORLD, options=["--restore", place])
    try:
        first = trainer(holder, 0, config, AT)
        until(lambda: lodged(holder, 0), what="rank 0 has read it all")
        holder.kill(0)
        until(lambda: holder.ready[0] == 2, what="rank 0 is back")
        rest = together(holder, config, AT, [1, 2, 3])
        check([r[0] for r in rest] == [0, 0, 0] and first.wait(LIMIT) == 0,
              f"before the meeting: {rest}\n{holder.text()[-3000:]}")
        check("--restore is ignored" in holder.text(), "the successor does not say what it does")
        first.communicate()
        seen = status(holder.runtime)
        check(all(r["restored"].startswith(f"step {AT} of save ") for r in seen["ranks"]),
              f"status: {seen['ranks'][0]}")
        for rank in range(WORLD):
            holder.kill(rank)
        until(lambda: all(n >= 2 for n in holder.ready) and holder.ready[0] == 3,
              what="all are back")
        ends = together(holder, config, END)
        found = LAST.search(ends[0][1])
        check([e[0] for e in ends] == [0] * WORLD and found and found[1] == whole.sha,
              f"before a step: {ends}\n{holder.text()[-3000:]}")
    finally:
        holder.close()


def two_checkpoints(place):
    """Ranks that read different checkpoints of one step do not train together."""
    other, _ = save("fp32", optimizer={"type": "AdamW", "params": {"lr": 1e-3}})
    config = folder / "config.json"
    config.write_text(json.dumps(settings()))
    holder = Holder(2, options=lambda rank: ["--restore", other if rank else place])
    try:
        ends = together(holder, config, END)
        check(all(code == 1 and "CORRUPT" in err and "rank 1 began with step 8 of save" in err
                  for code, _, err in ends), f"two checkpoints: {ends}")
    finally:
        holder.close()


def main():
    wholes, places, befores = {}, {}, {}
    try:
        for dtype, most in (("fp32", 1e-5), ("bf16", 2e-2), ("fp16", 2e-2)):
            wholes[dtype], places[dtype], befores[dtype] = same_type(dtype)
            other_worlds(dtype, wholes[dtype], places[dtype], befores[dtype], most)
            print(f"{dtype}: {wholes[dtype].losses}", flush=True)
        other_types(wholes, places, befores)
        weights(places["fp32"], befores["fp32"])
        optimizers(places["fp32"])
        damaged(by_config(places["fp32"], wholes["fp32"]))
        other_model(places["fp32"])
        usage()
        killed_while_reading(places["bf16"], wholes["bf16"])
        killed_before_a_step(places["fp32"], wholes["fp32"])
        two_checkpoints(places["fp32"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    done()


if __name__ == "__main__":
    main()
