#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes torch_steps.h: parameters and state after four steps of PyTorch's own optimizers on a CPU.

    python3 torch_steps.py >torch_steps.h

Needs PyTorch (the header names the release it was made with). The elements are repeated so that the
vectorised path is taken and no scalar tail; the start is uniform from splitmix64, each gradient has
a scale of its own between 1e-30 and 10, and some are zero or denormal.
"""
import numpy as np
import torch

N, STEPS, COPIES = 32, 4, 8
MASK64 = (1 << 64) - 1


def uniform(n, seed):
    out, s = np.empty(n), seed
    for i in range(n):
        s = (s + 0x9E3779B97F4A7C15) & MASK64
        z = ((s ^ (s >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
        out[i] = ((z ^ (z >> 31)) >> 40) * (1.0 / (1 << 24)) * 2 - 1
    return out


SCALES = np.array([1e-3, 1, 1e-6, 10, 1e-10, 1e-20, 1e-30, 1e-2] * (N // 8))


def gradient(t):
    g = (uniform(N, 100 + t) * SCALES).astype(np.float32)
    g[5 + t] = 0
    g[12 + t] = np.float32(1e-41)
    g[31] = 0
    return g


START = uniform(N, 1).astype(np.float32)
START[9] = 0
START[17] = np.float32(3e-40)
GRADIENTS = [gradient(t) for t in range(STEPS)]

ADAM = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
CASES = [
    ("AdamW", torch.optim.AdamW, dict(ADAM, weight_decay=0.01)),
    ("AdamW, no decay", torch.optim.AdamW, dict(ADAM, weight_decay=0)),
    ("AdamW, amsgrad", torch.optim.AdamW, dict(ADAM, weight_decay=0.1, amsgrad=True)),
    ("AdamW, beta1 below one half", torch.optim.AdamW,
     dict(lr=3e-4, betas=(0.4, 0.95), eps=1e-6, weight_decay=0.01)),
    ("Adam, L2", torch.optim.Adam, dict(ADAM, weight_decay=0.1)),
    ("Adam, no decay", torch.optim.Adam, dict(ADAM, weight_decay=0)),
    ("Adam, L2, amsgrad", torch.optim.Adam, dict(ADAM, weight_decay=0.1, amsgrad=True)),
    ("SGD", torch.optim.SGD, dict(lr=0.1)),
    ("SGD, decay", torch.optim.SGD, dict(lr=0.1, weight_decay=0.01)),
    ("SGD, momentum", torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    ("SGD, momentum, dampening, decay", torch.optim.SGD,
     dict(lr=0.03, momentum=0.9, dampening=0.3, weight_decay=0.01)),
    ("SGD, Nesterov, decay", torch.optim.SGD,
     dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
]
STATE = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")


def run(optimizer, options):
    p = torch.nn.Parameter(torch.from_numpy(np.tile(START, COPIES)))
    o = optimizer([p], **options)
    for g in GRADIENTS:
        p.grad = torch.from_numpy(np.tile(g, COPIES))
        o.step()
    arrays = [p.detach()]
    arrays += [o.state[p][key] for key in STATE if o.state[p].get(key) is not None]
    for a in arrays:
        assert (a.numpy().view(np.uint32).reshape(COPIES, N)
                == a.numpy().view(np.uint32)[:N]).all()
    return [a.numpy()[:N] for a in arrays]


def rows(x, indent):
    words = ["0x%08x" % u for u in np.ascontiguousarray(x).view(np.uint32)]
    return ",\n".join(" " * indent + ", ".join(words[i:i + 8]) for i in range(0, N, 8))


def main():
    torch.set_num_threads(1)
    print("/* SPDX-License-Identifier: MIT */")
    print("/* Written by torch_steps.py with PyTorch %s, CPU capability %s. fp32 as bit patterns. */"
          % (torch.__version__.split("+")[0], torch.backends.cpu.get_cpu_capability()))
    print("#ifndef TESTS_DATA_TORCH_STEPS_H\n#define TESTS_DATA_TORCH_STEPS_H\n")
    print("/* clang-format off */")
    print("#include <stdbool.h>\n#include <stdint.h>\n")
    print("enum { TORCH_COUNT = %d, TORCH_STEPS = %d };\n" % (N, STEPS))
    print("static const uint32_t torch_start[TORCH_COUNT] = {\n%s\n};\n" % rows(START, 4))
    print("static const uint32_t torch_gradients[TORCH_STEPS][TORCH_COUNT] = {")
    print(",\n".join("    {\n%s\n    }" % rows(g, 8) for g in GRADIENTS))
    print("};\n")
    print("/* State in the order momentum_buffer, exp_avg, exp_avg_sq, max_exp_avg_sq, what is there. */")
    print("struct torch_case {\n    const char *name;\n    bool sgd, decoupled, amsgrad, nesterov;\n"
          "    double lr, beta1, beta2, eps, weight_decay, momentum, dampening;\n"
          "    uint32_t p[TORCH_COUNT], state[3][TORCH_COUNT];\n};\n")
    print("static const struct torch_case torch_cases[] = {")
    for name, optimizer, o in CASES:
        p, *state = run(optimizer, o)
        sgd = optimizer is torch.optim.SGD
        betas = o.get("betas", (0, 0))
        print('    { "%s", %s, %s, %s, %s,' % ((name,) + tuple(
            str(bool(b)).lower() for b in (sgd, optimizer is torch.optim.AdamW, o.get("amsgrad"),
                                           o.get("nesterov")))))
        print("      %r, %r, %r, %r, %r, %r, %r," % (o["lr"], betas[0], betas[1], o.get("eps", 0),
              o.get("weight_decay", 0), o.get("momentum", 0), o.get("dampening", 0)))
        print("      {\n%s\n      }," % rows(p, 10))
        print("      {\n%s\n      } }," % ",\n".join("        {\n%s\n        }" % rows(s, 10)
                                                     for s in state or [np.zeros(N, np.float32)]))
    print("};\n/* clang-format on */\n\n#endif")


if __name__ == "__main__":
    main()
