#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a small GPT on a text, byte by byte: an example of zeroclient.torch, and the same model,
data, options, log and last line as the C trainer, gpt. Runs under zerorun:

    zerorun -n 2 -- python train_gpt.py --steps 300

The daemons hold the model. Started again, this program goes on from the last committed step.
"""
import argparse
import hashlib
import json
import math
import os
import pathlib
import sys
import time

import numpy
import torch
from torch import nn
from torch.nn import functional

import zeroclient.torch
from zeroclient import errors

VOCABULARY = 128
HELD_OUT, HELD_OUT_SEQUENCES = 1000000, 16  # batches that no training comes to


# ---- random numbers and data, the same as the C trainer's ---------------------------------------

def splitmix64(states):
    """What splitmix64 gives from each state (NumPy, uint64)."""
    z = states + numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


class Stream:
    """Initial values: one stream of splitmix64 over all random tensors."""

    def __init__(self, seed):
        self.seed, self.used = seed, 0

    def matrix(self, rows, columns):
        places = numpy.arange(self.used, self.used + rows * columns, dtype=numpy.uint64)
        self.used += rows * columns
        z = splitmix64(numpy.uint64(self.seed) + places * numpy.uint64(0x9E3779B97F4A7C15))
        unit = (z >> numpy.uint64(40)).astype("d") * 2.0**-24 * 2 - 1
        values = (unit * (0.02 * math.sqrt(3.0))).astype("f").reshape(rows, columns)
        return nn.Parameter(torch.from_numpy(values))


class Text:
    def __init__(self, path, sequence):
        data = numpy.frombuffer(pathlib.Path(path).read_bytes(), dtype=numpy.uint8)
        if len(data) < sequence + 2:
            sys.exit(f"train_gpt: the text has {len(data)} bytes, sequences of {sequence} need at "
                     f"least {sequence + 2}")
        tokens = numpy.where(data >= VOCABULARY, ord("?"), data)
        self.tokens, self.sequence = torch.from_numpy(tokens.astype(numpy.int64)), sequence

    def batch(self, step, first, count):
        """Inputs and targets of `count` sequences of a step."""
        states = numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(1000003 * step + first + 7)
        room = numpy.uint64(len(self.tokens) - self.sequence - 1)
        starts = torch.from_numpy((splitmix64(states) % room).astype(numpy.int64))
        places = starts[:, None] + torch.arange(self.sequence + 1)
        tokens = self.tokens[places]
        return tokens[:, :-1], tokens[:, 1:]


# ---- the model ----------------------------------------------------------------------------------

class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return functional.layer_norm(x, self.g.shape, self.g, self.b, 1e-5)


class Linear(nn.Module):
    """Its matrix stands [in][out]."""

    def __init__(self, stream, rows, columns):
        super().__init__()
        self.w, self.b = stream.matrix(rows, columns), nn.Parameter(torch.zeros(columns))

    def forward(self, x):
        return x @ self.w + self.b


class Block(nn.Module):
    def __init__(self, stream, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.qkv = Norm(width), Linear(stream, width, 3 * width)
        self.out, self.ln2 = Linear(stream, width, width), Norm(width)
        self.up, self.down = Linear(stream, width, 4 * width), Linear(stream, 4 * width, width)

    def attend(self, x):
        parts = self.qkv(x).split(x.shape[-1], -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.ln1(x))
        return x + self.down(functional.gelu(self.up(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, options):
        super().__init__()
        stream, width = Stream(options.seed), options.width
        self.wte, self.wpe = stream.matrix(VOCABULARY, width), stream.matrix(options.seq, width)
        self.head, self.lnf = stream.matrix(VOCABULARY, width), Norm(width)
        self.layers = options.layers
        for number in range(options.layers):
            self.add_module(str(number), Block(stream, width, options.heads))

    def forward(self, tokens, targets=None):
        x = self.wte[tokens] + self.wpe[:tokens.shape[1]]
        for number in range(self.layers):
            x = getattr(self, str(number))(x)
        logits = (self.lnf(x) @ self.head.T).float()
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


# ---- training -----------------------------------------------------------------------------------

class Report:
    """A JSON object a step in the log, and progress on stderr."""

    def __init__(self, options, engine):
        self.first, self.last = engine.global_steps, options.steps
        self.tokens = engine.info.train_batch * options.seq
        self.begun = self.before = time.monotonic()
        mode = "a" if self.first else "w"
        self.log = open(options.log, mode, buffering=1) if options.log else None

    def step(self, result, loss_scale):
        now = time.monotonic()
        speed, self.before = self.tokens / (now - self.before), now
        if self.log:
            values = {"step": result.step - 1, "loss": result.scalars["loss"],
                      "grad_norm": result.grad_norm, "lr": result.lr, "loss_scale": loss_scale,
                      "applied": result.outcome == "applied", "tokens_per_s": int(speed)}
            print(json.dumps({key: value if math.isfinite(value) else None
                              for key, value in values.items()}), file=self.log)
        terminal = sys.stderr.isatty() or os.environ.get("ZERO_TERMINAL") == "1"
        tenth = (self.last - self.first + 9) // 10
        end = result.step == self.last
        if terminal or end or (result.step - self.first) % tenth == 0:
            mean = (now - self.begun) / (result.step - self.first)
            left = int(mean * (self.last - result.step) + 0.5)
            print(f"step {result.step}/{self.last}  loss {result.scalars['loss']:.4f}  "
                  f"lr {result.lr:.3g}  {speed:.0f} tokens/s  {left // 60}:{left % 60:02} left"
                  + ("" if result.outcome == "applied" else "  (skipped)"),
                  end="\r" if terminal and not end else "\n", file=sys.stderr, flush=True)


def train_step(engine, text):
    """The group's batch is divided among the ranks, and a rank's part among its micro-steps."""
    info = engine.info
    step, micro = engine.global_steps, info.micro_batch
    first = info.rank * info.accumulation * micro
    for number in range(info.accumulation):
        tokens, targets = text.batch(step, first + number * micro, micro)
        engine.backward(engine(tokens, targets))
        result = engine.step()
    return result


def train(engine, text, options):
    report = Report(options, engine) if engine.info.rank == 0 else None
    result = None
    while engine.global_steps < options.steps:
        loss_scale = engine.info.loss_scale
        try:
            result = train_step(engine, text)
        except errors.StepAborted:  # some trainer died: nothing has changed, do it again
            continue
        if report:
            report.step(result, loss_scale)
    return result


# ---- after training: rank 0 alone ---------------------------------------------------------------

@torch.no_grad()
def evaluate(engine, text, batches):
    losses = []
    for number in range(batches):
        tokens, targets = text.batch(HELD_OUT + number, 0, HELD_OUT_SEQUENCES)
        losses.append(float(engine(tokens, targets)))
    return sum(losses) / len(losses)


@torch.no_grad()
def sample(engine, options):
    """Bytes drawn from the model, at a temperature of 0.8."""
    random = torch.Generator().manual_seed(options.seed)
    tokens = [ord("\n")]
    for _ in range(options.sample):
        logits = engine(torch.tensor([tokens[-options.seq:]]))[0, -1]
        tokens.append(int(torch.multinomial((logits / 0.8).softmax(-1), 1, generator=random)))
    print("".join(chr(t) if t == 10 or 32 <= t < 127 else "?" for t in tokens[1:]))


def weights_hash(engine):
    """Of the fp32 master weights, in the order in which the C trainer has them."""
    found = {tensor.name: (number, index) for number, layer in enumerate(engine.client.layers)
             for index, tensor in enumerate(layer.tensors)}
    out = hashlib.sha256()
    for name, _ in engine.module.named_parameters():
        out.update(engine.client.read("master", *found[name]))
    return out.hexdigest()


def finish(engine, text, options, result):
    held_out = evaluate(engine, text, options.eval) if options.eval else None
    if options.sample:
        sample(engine, options)
    line = f"weights sha256={weights_hash(engine)} step={engine.global_steps}"
    if result:
        line += f" loss={result.scalars['loss']:.12f}"
    print(line + (f" heldout={held_out:.12f}" if options.eval else ""), flush=True)


# ---- options ------------------------------------------------------------------------------------

def beside(name):
    path = pathlib.Path(__file__).resolve().parent / name
    if not path.exists() and name.endswith(".txt"):  # in the source tree
        path = path.parents[2] / "tests" / "data" / name
    return str(path) if path.exists() else None


def parse():
    parser = argparse.ArgumentParser(description="Trains a small GPT on a text, byte by byte.")
    add = parser.add_argument
    add("-t", "--text", default=beside("devils-dictionary.txt"), help="learn from this file")
    add("-c", "--config", default=os.environ.get("ZERO_CONFIG") or beside("gpt.json"),
        help="optimizer, precision, stage and batch (default: $ZERO_CONFIG, else gpt.json)")
    for name, default, what in (("steps", 300, "train until this step"),
                                ("seq", 64, "bytes in a sequence"),
                                ("width", 64, "width of the model"), ("layers", 2, "blocks"),
                                ("heads", 4, "attention heads; must divide the width"),
                                ("seed", 42, "of initial weights and samples"),
                                ("eval", 0, "in the end, the mean loss of N batches held out"),
                                ("sample", 0, "in the end, write so many bytes from the model")):
        add(f"--{name}", type=int, default=default, metavar="N", help=f"{what} (default {default})")
    add("--log", metavar="FILE", help="rank 0 writes a JSON object a step to it")
    add("--layers-json", action="store_true",
        help="print the model for `zeroctl plan --layers`, and exit")
    options = parser.parse_args()
    if options.width % options.heads:
        parser.error(f"--width {options.width} cannot be divided among --heads {options.heads}")
    if options.text is None:
        parser.error("name the file to learn from with --text")
    return options


def main():
    options = parse()
    model = GPT(options)
    if options.layers_json:
        print(json.dumps(zeroclient.torch.describe_layers(model, wrap=Block)))
        return
    text = Text(options.text, options.seq)
    engine = zeroclient.torch.initialize(model, options.config, wrap=Block)
    result = train(engine, text, options)
    if engine.info.rank == 0:
        finish(engine, text, options, result)


if __name__ == "__main__":
    main()
