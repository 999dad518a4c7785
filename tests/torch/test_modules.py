#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Every kind of module and training of module_cases.py on 2 ranks at stage 3: losses, weights,
buffers and evaluations are, bit for bit, those of plain PyTorch, which has the same ranks one after
the other. Parameters that a step did not use have gradients of zero."""
import copy
import sys

import place
import torch
from harness import check, done
from module_cases import CASES, WIDTH
from ranks import Failed, fork, run
import zeroclient.torch

STEPS, WORLD, MICRO = 4, 2, 3


def batch(step, rank, number):
    random = torch.Generator().manual_seed(1 + number + 10 * rank + 100 * step)
    return torch.rand(MICRO, WIDTH, generator=random)


def model_of(case):
    torch.manual_seed(7)
    return case.make()


def ours(name):
    case = CASES[name]()
    model = model_of(case)
    config = {"train_batch_size": MICRO * WORLD * case.accumulation, "gradient_clipping": 0,
              "gradient_accumulation_steps": case.accumulation, "zero_optimization": {"stage": 3}}
    engine = zeroclient.torch.initialize(model, config, optimizer=case.optimizer(model))
    rank, out = engine.info.rank, []
    for step in range(STEPS):
        for number in range(case.accumulation):
            torch.manual_seed(1000 * step + 10 * number + rank)
            with case.around(engine, number):
                loss = case.loss(engine, batch(step, rank, number))
            case.backward(loss, engine.backward)
            engine.step()
            out.append(loss.detach().clone())
        out.append(case.between(engine, batch(step, rank, 9)))
    out.append({name: p.detach().clone() for name, p in engine.module.named_parameters()})
    return copy.deepcopy(out)


def plain(name):
    """What each rank would return."""
    case = CASES[name]()
    models = [model_of(case) for _ in range(WORLD)]
    optimizer = case.optimizer(models[0])
    out = [[] for _ in range(WORLD)]
    for step in range(STEPS):
        for p in models[0].parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        sums = [torch.zeros_like(p) for p in models[0].parameters()]
        for number in range(case.accumulation):
            for rank, model in enumerate(models):
                model.zero_grad()
                torch.manual_seed(1000 * step + 10 * number + rank)
                with case.around(model, number):
                    loss = case.loss(model, batch(step, rank, number))
                case.backward(loss, lambda value, **more: value.backward(**more))
                out[rank].append(loss.detach().clone())
                for total, p in zip(sums, model.parameters()):
                    if p.grad is not None:
                        total += p.grad
        for total, p in zip(sums, models[0].parameters()):
            p.grad = total / (WORLD * case.accumulation) if p.requires_grad else None
        optimizer.step()
        with torch.no_grad():
            for model in models[1:]:
                for to, weight in zip(model.parameters(), models[0].parameters()):
                    to.copy_(weight)
        for rank, model in enumerate(models):
            out[rank].append(case.between(model, batch(step, rank, 9)))
    for rank, model in enumerate(models):
        out[rank].append({name: p.detach().clone() for name, p in model.named_parameters()})
    return out


def differences(one, other, limit, path=""):
    """Where they are further apart than limit, in words."""
    if isinstance(one, torch.Tensor):
        if torch.equal(one, other):
            return []
        apart = float((one - other).abs().max()) if one.shape == other.shape else 9.0
        return [] if apart <= limit else [f"{path} by {apart}"]
    if isinstance(one, (list, tuple)) and len(one) == len(other):
        pairs = enumerate(zip(one, other))
        return sum((differences(a, b, limit, f"{path}[{i}]") for i, (a, b) in pairs), [])
    if isinstance(one, dict) and one.keys() == other.keys():
        return sum((differences(one[key], other[key], limit, f"{path} {key}") for key in one), [])
    return [] if one == other else [f"{path}: {one}, {other}"]


def compare(name):
    try:
        found = run(ours, WORLD, name)
    except Failed as error:
        check(False, f"{name}: {error}")
        return
    wanted, = fork(plain, 1, name)
    apart = differences(found, wanted, CASES[name].limit)
    check(not apart, f"{name}: {len(apart)} differ: {', '.join(apart[:4])}")
    if not apart:
        print(f"{name}: within {CASES[name].limit}", flush=True)


def main():
    place.check_build()
    for name in sys.argv[1:] or CASES:
        compare(name)
    done()


if __name__ == "__main__":
    main()
