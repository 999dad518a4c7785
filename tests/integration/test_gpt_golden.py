#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""gpt under zerorun has the golden losses, for every world size and stage; precisions learn as well as
they should; stages, repetition and restarts do not change a bit.

Golden losses and final means: float64 programs of ours in C and PyTorch that agree in all digits shown,
and simulated ranks in the 16-bit formats.
"""
import re

from harness import *

GOLDEN = {0: 4.868776661716, 1: 4.546309118918, 2: 4.335033038149, 3: 4.178017961853,
          4: 4.023259071741, 5: 3.852949100191, 6: 3.701857645326, 7: 3.554303617332,
          8: 3.472085104808, 9: 3.422122583558}
GOLDEN_NORM = 2.645575176328  # of the gradient, at step 0
GOLDEN_49 = 2.802669
# mean of the last 50 of 300 steps at lr 1e-3, and the held-out loss
FINAL = {"bf16": (2.4054, 2.3641), "fp16": (2.4080, 2.3706)}

CONFIG = SOURCE / "client" / "examples" / "gpt.json"
LAST = re.compile(r"weights sha256=([0-9a-f]{64}) step=(\d+) loss=(\S+)(?: heldout=(\S+))?$")


def train(world, steps, *settings, arguments=(), command=(GPT,)):
    """(hash, held-out loss, the log) of a run that must succeed."""
    options = ["--config", CONFIG] + [x for s in settings for x in ("-o", s)]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    group = Group(world, [*command, "--steps", steps, "--log", folder / "log", *arguments],
                  options=options)
    code = group.wait()
    lines = group.rank_lines(0)
    last = LAST.match(lines[-1]) if lines else None
    what = f"N={world} {' '.join(settings)}"
    check(code == 0 and last, f"{what}: exit {code}\n{group.stderr()[-800:]}")
    log = []
    if (folder / "log").exists():
        log = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    group.close()
    shutil.rmtree(folder)
    if not last:
        return None, None, []
    check([l["step"] for l in log] == list(range(steps)) and int(last[2]) == steps,
          f"{what}: the log has steps {[l['step'] for l in log]}")
    check(abs(float(last[3]) - log[-1]["loss"]) < 1e-9, f"{what}: last line and log differ")
    return last[1], float(last[4]) if last[4] else None, log


def stage(number):
    return f"zero_optimization.stage={number}"


def golden(world, number, command=(GPT,), late_limit=1.5e-5):
    """The hash of a run in fp32, whose losses must be the golden ones."""
    sha256, _, log = train(world, 51, stage(number), command=command)
    if not log:
        return None
    early = max(abs(log[step]["loss"] - loss) for step, loss in GOLDEN.items())
    late = abs(log[49]["loss"] - GOLDEN_49)
    norm = abs(log[0]["grad_norm"] - GOLDEN_NORM)
    print(f"N={world} stage {number} fp32: steps 0-9 within {early:.1e}, step 49 within {late:.1e}, "
          f"norm within {norm:.1e}", flush=True)
    check(early < 2e-6, f"N={world} stage {number}: {early} from the golden losses")
    check(late < late_limit, f"N={world} stage {number}: {late} at step 49")
    check(norm < 2e-6, f"N={world} stage {number}: gradient norm {log[0]['grad_norm']}")
    return sha256


def precision(dtype, command=(GPT,)):
    mean, held_out = FINAL[dtype]
    _, held, log = train(2, 300, f"{dtype}.enabled=true", "optimizer.params.lr=1e-3",
                         arguments=["--eval", 16], command=command)
    if not log:
        return
    found = sum(l["loss"] for l in log[-50:]) / 50
    print(f"N=2 stage 3 {dtype} lr 1e-3: last 50 {found:.4f} (table {mean}), held out {held:.4f} "
          f"(table {held_out})", flush=True)
    check(abs(found - mean) < 0.02, f"{dtype}: mean of the last 50 losses {found}")
    check(abs(held - held_out) < 0.02, f"{dtype}: held-out loss {held}")


def same(name, hashes):
    print(f"{name}: {len(hashes)} runs, {len(set(hashes))} hash", flush=True)
    check(len(set(hashes)) == 1 and hashes[0], f"{name}: {hashes}")


def full_log():
    """A log that cannot be written ends the run at once, and says which and why."""
    group = Group(1, [GPT, "--steps", 100, "--log", "/dev/full"], options=["--max-restarts", "0"])
    code = group.wait()
    words = group.stderr()
    check(code != 0 and "cannot write /dev/full: No space left" in words and "step 11/" not in words,
          f"full log: exit {code}\n{words[-800:]}")
    group.close()


def nothing_to_do():
    """A run whose steps are made already tells what it knows: the weights and the held-out loss."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    ends = []
    for _ in range(2):
        group = Group(2, [GPT, "--steps", 3, "--eval", 1],
                      options=["-o", f"zerod.checkpoint.dir={folder}/run"])
        code = group.wait()
        ends.append(group.rank_lines(0)[-1] if group.rank_lines(0) else group.stderr()[-800:])
        check(code == 0, f"3 steps: exit {code}\n{ends[-1]}")
        group.close()
    shutil.rmtree(folder)
    check(re.fullmatch(r"weights sha256=\w+ step=3 loss=[0-9.]+ heldout=[0-9.]+", ends[0]), ends[0])
    check(re.sub(" loss=[^ ]+", "", ends[0]) == ends[1], f"{ends[0]}, then with nothing to do {ends[1]}")


def main():
    full_log()
    nothing_to_do()
    for world in (1, 2, 4):
        hashes = [golden(world, number) for number in range(4)] + [golden(world, 3)]
        same(f"N={world} fp32, stages 0-3 and stage 3 again", hashes)
    for dtype in ("bf16", "fp16"):
        precision(dtype)
    for dtype in (None, "bf16", "fp16"):
        for accumulation in (1, 4):
            more = [f"{dtype}.enabled=true"] if dtype else []
            more.append(f"gradient_accumulation_steps={accumulation}")
            same(f"N=2 {dtype or 'fp32'} accumulation {accumulation}, stages 0-3",
                 [train(2, 30, stage(number), *more)[0] for number in range(4)])
    done()


if __name__ == "__main__":
    main()
