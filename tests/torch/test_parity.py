#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The same model, data and seed in zerod, in one process of plain PyTorch, and in its
DistributedDataParallel on gloo: max |difference| of the fp32 weights after 20 steps.

One process: what the ranks would compute, one after the other, gradients added in fp32 in the order
of the micro-batches and, in each, of the ranks, and fp32 master weights where the model has 16
bits. Optimizers are torch.optim's, fused, whose arithmetic is correctly rounded (the others take
square roots of a library that is not, in PyTorch's wheels). All is equal bit for bit where nothing
is clipped.
"""
import pathlib
import shutil
import sys
import tempfile

from place import HERE
import torch
from harness import Group, check, done
from parity_model import CASES, STEPS, make_model, micro_batches
from safetensors.torch import load_file, save_file
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

TRAINER = HERE / "parity_trainer.py"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def zerod(case, world, stage):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    group = Group(world, [sys.executable, TRAINER, case, folder / "out", stage])
    code = group.wait()
    check(code == 0, f"{case}, N={world}: exit {code}\n{group.stderr()[-2000:]}")
    group.close()
    out = load_file(folder / "out") if code == 0 else {}
    shutil.rmtree(folder)
    return out


def optimizer_of(case, parameters):
    kind, options = CASES[case][:2]
    return getattr(torch.optim, kind)(parameters, fused=True, **options)


def one_process(case, world):
    """fp32 weights after STEPS."""
    _, _, clipping, accumulation, dtype = CASES[case]
    model = make_model()
    master = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.to(DTYPES[dtype])
    weights = [(p, master[name]) for name, p in model.named_parameters()]
    optimizer = optimizer_of(case, list(master.values()))
    for step in range(STEPS):
        for _, weight in weights:
            weight.grad = torch.zeros_like(weight)
        parts = [micro_batches(step, rank, world, accumulation) for rank in range(world)]
        for number in range(accumulation):
            for rank in range(world):
                model.zero_grad()
                model(parts[rank][number]).backward()
                for p, weight in weights:
                    weight.grad += p.grad.float()
        for _, weight in weights:
            weight.grad /= world * accumulation
        if clipping:
            torch.nn.utils.clip_grad_norm_(master.values(), clipping)
        optimizer.step()
        with torch.no_grad():
            for p, weight in weights:
                p.copy_(weight)
    return master


def ddp_case(rank, world, case, out):
    _, _, clipping, accumulation, dtype = CASES[case]
    model = make_model()
    ddp = DistributedDataParallel(model)
    optimizer = optimizer_of(case, model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for batch in micro_batches(step, rank, world, accumulation):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
                loss = ddp(batch)
            (loss / accumulation).backward()
        if clipping:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clipping)
        optimizer.step()
    if rank == 0:
        save_file({name: p.detach() for name, p in model.named_parameters()}, out)


def ddp_rank(rank, world, cases, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    for case in cases:
        ddp_case(rank, world, case, folder / case)
    distributed.barrier()
    distributed.destroy_process_group()


def ddp(cases, world):
    """Weights of each case."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    torch.multiprocessing.spawn(ddp_rank, (world, cases, folder), world)
    out = {case: load_file(folder / case) for case in cases}
    shutil.rmtree(folder)
    return out


def difference(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one) if one else 9.0


def compare(case, replicated):
    clipping, dtype = CASES[case][2], CASES[case][4]
    for world in (1, 2):
        ours = zerod(case, world, 2 if world == 1 else 3)
        plain = one_process(case, world)
        apart = difference(ours, plain)
        moved = difference({n: p.detach() for n, p in make_model().named_parameters()}, plain)
        line = f"{case:34} N={world} moved {moved:.2f}  one process {apart:.1e}"
        check(apart <= (2e-6 if clipping else 0), f"{case}, N={world}: {apart} from one process")
        if world == 2:
            apart = difference(ours, replicated)
            line += f"  DDP {apart:.1e}"
            limit = 5e-6 if dtype == "fp32" else 0.1  # DDP in bf16: autocast, another rounding
            check(apart <= limit, f"{case}: {apart} from DDP")
        print(line, flush=True)


def main():
    torch.set_num_threads(1)
    cases = sys.argv[1:] or list(CASES)
    replicated = ddp(cases, 2)
    for case in cases:
        compare(case, replicated[case])
    done()


if __name__ == "__main__":
    main()
