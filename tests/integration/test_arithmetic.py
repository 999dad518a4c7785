#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Two ranks train to what an independent float64 computation gives, and every stage, world size,
order, accumulation and instruction set gives the same bits."""
import itertools

import numpy

from harness import *

SPEC = "emb:37x5,1;block:64x33,64;odd:7;head:1,1000"
SEED = 7


def reference(world, steps, accumulation=1, optimizer="AdamW", lr=1e-2, decay=0.1, clip=0.0,
              present=None, split=False):
    """Float64, straight from the papers' formulas."""
    shapes = shapes_of(SPEC)
    p = [w.astype(numpy.float64) for w in initial(SPEC, SEED)]
    m = [numpy.zeros_like(w) for w in p]
    v = [numpy.zeros_like(w) for w in p]
    norms = []
    present = present or (lambda layer, rank, micro: micro <= accumulation)
    for step in range(steps):
        grads = []
        for t, (layer, _) in enumerate(shapes):
            g = numpy.zeros_like(p[t])
            for micro in range(1, accumulation + 2):
                for rank in range(world):
                    if present(layer, rank, micro):
                        g += gradient(SPEC, SEED, step, (micro - 1) * world + rank, t)
            grads.append(g / (world * accumulation))
        norm = numpy.sqrt(sum((g * g).sum() for g in grads))
        norms.append(norm)
        if clip > 0:
            grads = [g * min(1.0, clip / (norm + 1e-6)) for g in grads]
        for t, g in enumerate(grads):
            thin = split and len(shapes[t][1]) == 1
            rate, wd = lr * (0.5 if thin else 1), (0 if thin else decay)
            if optimizer == "SGD":
                g = g + wd * p[t]
                m[t] = g if step == 0 else 0.9 * m[t] + g
                p[t] -= rate * m[t]
                continue
            if optimizer == "Adam":
                g = g + wd * p[t]
            else:
                p[t] *= 1 - rate * wd
            m[t] = 0.9 * m[t] + 0.1 * g
            v[t] = 0.999 * v[t] + 0.001 * g * g
            mh, vh = m[t] / (1 - 0.9 ** (step + 1)), v[t] / (1 - 0.999 ** (step + 1))
            p[t] -= rate * mh / (numpy.sqrt(vh) + 1e-8)
    return p, m, v, norms


OPTIMIZERS = {
    "AdamW": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
    "Adam": {"type": "Adam", "params": {"lr": 1e-2, "weight_decay": 0.1, "adam_w_mode": False}},
    "SGD": {"type": "SGD", "params": {"lr": 1e-2, "weight_decay": 0.1, "momentum": 0.9}},
}


def run(world, settings, *more, steps=5, env=None, spec=SPEC):
    """(dump, JSON lines of rank 0), or None after saying what went wrong."""
    group = Group(world, [PROBE, "--layers", spec, "--seed", SEED, "--steps", steps, "--dump", DUMP,
                          *more], settings, env=env)
    code = group.wait()
    lines = group.rank_json()
    if code != 0:
        check(False, f"world {world} {settings} {more}: exit {code}\n{group.stderr()[-1500:]}")
        group.close()
        return None
    group.close()
    return read_dump(DUMP, spec), open(DUMP, "rb").read(), lines


DUMP = tempfile.mktemp(prefix="zt-dump-")


def close(name, have, want, bound):
    for t, (a, b) in enumerate(zip(have, want)):
        worst = numpy.abs(a.astype(numpy.float64) - b).max()
        check(worst <= bound, f"{name}: tensor {t} is off by {worst:.3g} (bound {bound})")


def against_float64():
    for name, stage in itertools.product(OPTIMIZERS, (0, 1, 2, 3)):
        result = run(2, config(2, stage=stage, optimizer=OPTIMIZERS[name]))
        if result is None:
            continue
        p, m, v, norms = reference(2, 5, optimizer=name)
        close(f"{name} stage {stage} weights", result[0]["master"], p, 2e-6)
        close(f"{name} stage {stage} moment1", result[0]["moment1"], m, 2e-6)
        if name != "SGD":
            close(f"{name} stage {stage} moment2", result[0]["moment2"], v, 1e-7)
        for line, norm in zip(result[2], norms):
            check(abs(float.fromhex(line["grad_norm"]) - norm) < 1e-5 * norm,
                  f"{name} stage {stage}: norm {line['grad_norm']} is not {norm}")
            check(line["mean"] == line["step"] + 0.5, f"scalar mean {line}")
    print("float64 reference: done", flush=True)


def special_cases():
    """Clipping, groups, missing layers, uneven micro-steps."""
    cases = [
        ("clip", dict(clip=0.05), dict(gradient_clipping=0.05), []),
        ("groups", dict(split=True), {}, ["--decay-split"]),
        ("layer missing everywhere", dict(present=lambda l, r, k: k == 1 and l != 1), {},
         ["--skip-layer", 1]),
        ("layer missing on rank 1", dict(present=lambda l, r, k: k == 1 and (l != 1 or r == 0)), {},
         ["--skip-layer", 1, "--skip-rank", 1]),
        ("rank 1 takes one more", dict(present=lambda l, r, k: k == 1 or r == 1), {},
         ["--more-rank", 1]),
        ("rank 0 only fills", {}, {}, ["--fill-rank-0"]),
        ("cross order", {}, dict(zero_optimization={"reduce_bucket_size": 1, "overlap_comm": False}),
         ["--order", "cross"]),
    ]
    for (name, ref, settings, options), stage in itertools.product(cases, (0, 2, 3)):
        result = run(2, config(2, stage=stage, **settings), *options)
        if result is not None:
            close(f"{name} stage {stage}", result[0]["master"], reference(2, 5, **ref)[0], 3e-6)
    print("special cases: done", flush=True)


def same_bits():
    """One dump for all stages, orders, kernels, and all ways to split four samples over ranks."""
    for dtype in ("fp32", "bf16", "fp16"):
        first, norms = None, None
        runs = [(w, a, s, o, k) for (w, a), s, o, k in
                [((2, 2), s, o, k) for s in (0, 1, 2, 3) for o in ("back", "shift")
                 for k in (None, "scalar", "avx2") if (o == "back" or k is None)]
                + [((1, 4), s, "back", None) for s in (0, 3)] + [((4, 1), s, "back", None)
                                                                for s in (0, 1, 2, 3)]]
        for world, accumulation, stage, order, kernels in runs:
            env = {"ZERO_KERNELS": kernels} if kernels else None
            result = run(world, config(world, stage=stage, dtype=dtype, accumulation=accumulation,
                                       gradient_clipping=0.3), "--order", order, env=env)
            name = f"{dtype} world {world} x {accumulation} stage {stage} {order} {kernels}"
            if result is None:
                continue
            line = [(l["grad_norm"], l["scale"], l["updates"]) for l in result[2]]
            if first is None:
                first, norms = result[1], line
            check(result[1] == first, f"{name}: state differs")
            check(line == norms, f"{name}: norms differ")
    print("same bits: done", flush=True)


def skipped_steps():
    """Non-finite gradients leave the state alone, in every precision and stage."""
    for dtype, stage, what in itertools.product(("fp32", "bf16", "fp16"), (0, 3), ("inf", "nan")):
        settings = config(2, stage=stage, dtype=dtype)
        if dtype == "fp16":
            settings["fp16"].update(initial_scale_power=8, hysteresis=1)
        two = run(2, settings, steps=2)
        three = run(2, settings, "--inject", f"2:1:{what}", steps=3)
        if two is None or three is None:
            continue
        check(two[1] == three[1], f"{dtype} stage {stage} {what}: a skipped step changed the state")
        last = three[2][-1]
        check(last["outcome"] == (1 if dtype == "fp16" else 2) and last["updates"] == 2,
              f"{dtype} stage {stage} {what}: {last}")
        if dtype == "fp16":
            check([l["scale"] for l in three[2]] == [256, 256, 128], f"fp16 scale {three[2]}")
    print("skipped steps: done", flush=True)


def sizes():
    """World larger than a layer has elements; eight ranks; one-element layers."""
    for world, stage in itertools.product((3, 8), (0, 1, 2, 3)):
        spec = "one:1;two:2,1;big:5000"
        result = run(world, config(world, stage=stage), steps=2, spec=spec)
        base = run(1, config(1, stage=0, accumulation=world), steps=2, spec=spec)
        if result is not None and base is not None:
            check(result[1] == base[1], f"world {world} stage {stage} differs from one rank")
    print("sizes: done", flush=True)


if __name__ == "__main__":
    against_float64()
    special_cases()
    same_bits()
    skipped_steps()
    sizes()
    done()
