#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The mistakes that people make, each with the error that it gets: the kind, and the words by which
one knows what to do. Nobody's process is killed, and training goes on where it can."""
import os
import pathlib
import re
import socket
import sys
import tempfile
import threading

import place
import torch
from harness import check, done
from ranks import Failed, fork, run
from test_hostile import field, frame
from torch import nn
import zeroclient.torch
from zeroclient import errors

CONFIG = {"train_batch_size": 4, "gradient_clipping": 0,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}


def model(width=8):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.BatchNorm1d(width), nn.Linear(width, 4))


def start(config=None, net=None, **more):
    return zeroclient.torch.initialize(model() if net is None else net, config or CONFIG, **more)


def step(engine):
    loss = engine(torch.ones(2, 4) * torch.arange(2.0)[:, None]).square().mean()
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def caught(call, *args, **more):
    """(names of the error's classes, its text), or None."""
    try:
        call(*args, **more)
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__], str(error)
    return None


def goes_on(mistake):
    """What the mistake gets, in the middle of a training whose losses are those without it."""
    def trained(wrong):
        engine = start()
        first, got = step(engine), wrong(engine)
        return [first, step(engine)], got
    return trained(mistake)


# ---- one a function, each called in every rank of a group ----------------------------------------

def moved(engine):
    return caught(engine.module.to, torch.bfloat16)


def moved_where_it_is(engine):
    engine.to("cpu")
    engine.module.float()
    return (["none"], "")


def halved(engine):
    return caught(engine.half)


def stepped_by_hand(engine):
    return caught(engine.optimizer.step)


def own_optimizer(engine):
    """An optimizer of torch over the weights."""
    optimizer = torch.optim.SGD(engine.parameters(), lr=0.1)
    for p in engine.parameters():
        with torch._C.DisableTorchFunctionSubclass():
            p.grad = torch.ones_like(p)
    try:
        return caught(optimizer.step)
    finally:
        for p in engine.parameters():
            p.grad = None


def loaded(engine):
    return caught(engine.module.load_state_dict, model().state_dict())


def written(engine):
    with torch.no_grad():
        return caught(engine.module[0].weight.fill_, 1.0)


def initialized_late(engine):
    return caught(nn.init.xavier_uniform_, engine.module[0].weight)


def given_data(engine):
    def assign():
        engine.module[0].weight.data = torch.zeros(8, 4)
    return caught(assign)


def written_by_numpy(engine):
    def assign():
        engine.module[0].weight.detach().numpy()[0, 0] = 1
    return caught(assign)


def forgotten_step(engine):
    def many():
        for _ in range(100):
            engine.backward(engine(torch.rand(2, 4)).mean())
    got = caught(many)
    engine.step()
    return got


def wrong_loss(engine):
    return caught(engine.backward, engine(torch.ones(2, 4)))


def wrong_loader(engine):
    data = torch.utils.data.TensorDataset(torch.ones(10, 4))
    return caught(engine.loader, torch.utils.data.DataLoader(data, batch_size=3))


def twice(engine):
    return caught(zeroclient.torch.initialize, engine.module, CONFIG)


def optimizer_state(engine):
    return caught(engine.optimizer.state_dict)


def late_group(engine):
    return caught(engine.optimizer.add_param_group, {"params": [nn.Parameter(torch.ones(1))]})


READ_ONLY = "WeightsAreReadOnly"
IN_TRAINING = {
    moved: (READ_ONLY, "moved or cast after initialize: do it before"),
    moved_where_it_is: ("none", ""),
    halved: (READ_ONLY, "choose the dtype by the config"),
    stepped_by_hand: ("SteppedByHand", "call engine.step"),
    own_optimizer: (READ_ONLY, "engine.step"),
    loaded: ("RuntimeError", "gathered"),
    written: (READ_ONLY, "gathered"),
    initialized_late: (READ_ONLY, "gathered"),
    given_data: (READ_ONLY, "moved or cast"),
    written_by_numpy: ("ValueError", "read-only"),
    forgotten_step: ("InvalidState", "without engine.step"),
    wrong_loss: ("InvalidArgument", "tensor of one element"),
    wrong_loader: ("InvalidArgument", "train_micro_batch_size_per_gpu"),
    twice: ("InvalidState", "belongs to an engine already"),
    optimizer_state: ("Unsupported", "save_checkpoint"),
    late_group: ("Unsupported", "before initialize"),
}


def different_models():
    return caught(start, net=model(8 + int(os.environ["RANK"])))


def different_configs():
    return caught(start, dict(CONFIG, gradient_clipping=int(os.environ["RANK"])))


def batch_that_does_not_divide():
    return caught(start, dict(CONFIG, train_batch_size=3))


def batch_that_contradicts():
    return caught(start, dict(CONFIG, train_micro_batch_size_per_gpu=4))


def no_optimizer():
    return caught(start, {"train_batch_size": 4})


def other_optimizer():
    net = model()
    return caught(start, net=net, optimizer=torch.optim.Adagrad(net.parameters()))


def optimizer_of_another():
    return caught(start, optimizer=torch.optim.AdamW(model().parameters()))


def half_model():
    return caught(start, net=model().half())


def sparse_gradient():
    engine = start(net=nn.Embedding(5, 4, sparse=True))
    return caught(engine.backward, engine(torch.tensor([1, 2])).sum())


AT_THE_START = {
    different_models: (errors.Conflict, r"rank \d.*weight"),
    different_configs: (errors.Conflict, r"rank \d.*gradient_clipping|config"),
    batch_that_does_not_divide: (errors.ConfigError, "train_batch_size"),
    batch_that_contradicts: (errors.ConfigError, "train_batch_size"),
    no_optimizer: (errors.InvalidArgument, "no optimizer"),
    other_optimizer: (errors.Unsupported, "Adagrad: zerod has Adam, AdamW and SGD"),
    optimizer_of_another: (errors.InvalidArgument, "not one of the model's"),
    half_model: (errors.InvalidArgument, "float16.*fp16.enabled|model.float"),
    sparse_gradient: (errors.Unsupported, "sparse=False"),
}


# ---- daemons -------------------------------------------------------------------------------------

def no_daemons():
    """Neither of this user, nor where one was said to be."""
    for name in ("ZERO_SOCKET", "ZERO_RUNTIME_DIR"):
        os.environ.pop(name, None)
    os.environ["RANK"] = "77"
    nobody = caught(start)
    os.environ["ZERO_SOCKET"] = "/nowhere/rank-0.sock"
    return nobody, caught(start, deadline=0.5)


def other_version():
    """A daemon that greets with another version of the protocol."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="zt-")) / "rank-0.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()

    def serve():
        peer, _ = listener.accept()
        peer.recv(1000)
        peer.send(frame(2, field(1, 99) + field(3, 1)))
        peer.recv(1000)

    threading.Thread(target=serve, daemon=True).start()
    os.environ["ZERO_SOCKET"] = str(path)
    return caught(start, deadline=5)


def expect(name, got, kind, words):
    kind = kind if isinstance(kind, str) else kind.__name__
    fine = got is not None and kind in got[0] and re.search(words, got[1], re.S)
    check(fine, f"{name}: {got}, not {kind}: {words}")
    if fine and got[1]:
        print(f"{name}: {got[0][0]}: {got[1]}", flush=True)


def attempt(function, *args, **more):
    try:
        return run(function, 2, *args, **more)
    except Failed as error:
        check(False, f"{[getattr(one, '__name__', one) for one in (function, *args)]}: {error}")
        return []


def daemons():
    nobody, nowhere = fork(no_daemons, 1)[0]
    expect("no daemons", nobody, errors.NotFound, "zerorun")
    expect("no socket", nowhere, errors.DeadlinePassed, "/nowhere/rank-0.sock")
    expect("another version", fork(other_version, 1)[0], errors.VersionError,
           "protocol 99.*same version of both")


def main():
    place.check_build()
    names = sys.argv[1:]
    undisturbed = attempt(goes_on, lambda _engine: None)
    for mistake, (kind, words) in IN_TRAINING.items():
        if names and mistake.__name__ not in names:
            continue
        for rank, (losses, got) in enumerate(attempt(goes_on, mistake)):
            if mistake is not forgotten_step:
                check(losses == undisturbed[rank][0], f"{mistake.__name__}: losses {losses}, "
                      f"without it {undisturbed[rank][0]}")
            if rank == 0:
                expect(mistake.__name__, got, kind, words)
    for mistake, (kind, words) in AT_THE_START.items():
        if names and mistake.__name__ not in names:
            continue
        for got in attempt(mistake)[:1]:
            expect(mistake.__name__, got, kind, words)
    daemons()
    done()


if __name__ == "__main__":
    main()
