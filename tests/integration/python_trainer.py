#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Trainers of test_python.py: `train` checks its numbers, `interrupt` is told to stop waiting."""
import json
import os
import pathlib
import signal
import sys
import threading

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))
import zeroclient  # noqa: E402
from zeroclient import errors  # noqa: E402

LAYERS = [("a", [("w", (3, 5)), ("b", (7,))]), ("c", [("x", (1000,))])]
STEPS, LR, DECAY, BETA1, BETA2, EPS = 5, 1e-2, 0.1, 0.9, 0.999, 1e-8


def say(**what):
    print(json.dumps(what), flush=True)


def start(client):
    """Registers and fills; the values by tensor name."""
    client.register(LAYERS)
    random = numpy.random.default_rng(1)
    values = {t.name: random.standard_normal(t.shape).astype("f")
              for layer in client.layers for t in layer.tensors}
    for number, layer in enumerate(client.layers):
        for index, tensor in enumerate(layer.tensors):
            client.fill(number, index, values[tensor.name])
    client.fill_end()
    return values


def adamw(value, gradient):
    """STEPS of AdamW (Loshchilov and Hutter 2019, algorithm 2) in float64."""
    p, g = value.astype("d"), gradient.astype("d")
    m, v = numpy.zeros_like(p), numpy.zeros_like(p)
    for step in range(1, STEPS + 1):
        p -= LR * DECAY * p
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        p -= LR * (m / (1 - BETA1**step)) / (numpy.sqrt(v / (1 - BETA2**step)) + EPS)
    return p


def refusals(client, view):
    """What must raise, and does not."""
    out = []
    for what, kind, call in (
            ("close with a view", errors.InvalidState, client.close),
            ("write to weights", ValueError, lambda: view.__setitem__(0, 1)),
            ("fill twice", errors.InvalidState, lambda: client.fill(0, 0, view[:15].copy())),
            ("fill of float64", errors.InvalidArgument, lambda: client.fill(0, 0, numpy.zeros(15))),
            ("no such layer", errors.InvalidArgument, lambda: client.window(9)),
            ("no such state", errors.InvalidArgument, lambda: client.read("moment3", 0, 0)),
            ("nine scalars", errors.TooLarge,
             lambda: client.step(scalars={str(n): n for n in range(9)}))):
        try:
            call()
        except kind:
            continue
        except Exception as other:  # noqa: BLE001
            what += f": {other!r}"
        out.append(what)
    return out


def train():
    wrong = []
    with zeroclient.Client() as client:
        values = start(client)
        view = numpy.asarray(client.gather(0))
        wrong += refusals(client, view)
        for step in range(STEPS):
            for layer in (1, 0):
                window = numpy.asarray(client.window(layer))
                window[:] = 0.5 + client.info.rank  # the mean over two ranks is 1
                client.submit(layer)
                del window
            result = client.step(scalars={"loss": client.info.rank}, blob=b"step %d" % step)
        if result.step != STEPS or result.scalars != {"loss": 0.5} or client.blob() != b"step 4":
            wrong.append(f"{result} {client.blob()}")
        for number, layer in enumerate(client.layers):
            for index, tensor in enumerate(layer.tensors):
                got = numpy.asarray(client.read("master", number, index)).reshape(tensor.shape)
                want = adamw(values[tensor.name], numpy.ones(tensor.shape))
                if not numpy.allclose(got, want, rtol=1e-6, atol=1e-7):
                    wrong.append(f"{tensor.name} is off by {abs(got - want).max()}")
                if number == 0:
                    flat = view[tensor.offset:tensor.offset + tensor.count]
                    if (flat != got.ravel()).any():
                        wrong.append(f"the gathered {tensor.name} is not the master")
        del view, flat
    say(wrong=wrong)


def interrupt():
    with zeroclient.Client() as client:
        start(client)
        if client.info.rank == 0:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                client.step()
            except KeyboardInterrupt:
                say(what="interrupted")
                pathlib.Path(os.environ["ZERO_RUNTIME_DIR"], "go").touch()
        else:
            while not pathlib.Path(os.environ["ZERO_RUNTIME_DIR"], "go").exists():
                threading.Event().wait(0.02)
        if client.step().step == 1:
            say(what="stepped")


if __name__ == "__main__":
    {"train": train, "interrupt": interrupt}[sys.argv[1]]()
