# SPDX-License-Identifier: MIT
"""The kinds of modules and trainings of test_modules.py. Each class: make() gives the model, loss()
calls it (the engine, or the plain model) on a rank's micro-batch; see Case for the rest."""
import contextlib

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH = 16  # a vector of AVX-512: the tails of torch's fused optimizers round otherwise


class Case:
    accumulation = 1
    limit = 0.0  # how far apart results may be
    optimizer = staticmethod(lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2,
                                                             fused=True))

    @staticmethod
    def around(model, number):
        """Around the forward of a micro-step."""
        return contextlib.nullcontext()

    @staticmethod
    def between(model, batch):
        """After each step; what it returns must be the same."""
        return None

    def loss(self, model, batch):
        return (model(batch) - batch.roll(1, 0)).square().mean()

    def backward(self, loss, backward):
        backward(loss)


def block(width=WIDTH):
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), block()

    def forward(self, x):
        return x + self.inner(self.norm(x))


def stack(count=3):
    blocks = nn.Sequential(*[Residual() for _ in range(count)])
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), blocks, nn.Linear(WIDTH, WIDTH))


class Tied(Case):
    """One tensor under two names, in two layers."""

    def make(self):
        model = stack()
        model[2].weight = model[0].weight
        return model


class Frozen(Case):
    """A whole block, a part of another, the first layer."""

    def make(self):
        model = stack()
        for part in (model[0], model[1][0], model[1][1].norm):
            part.requires_grad_(False)
        return model

    optimizer = staticmethod(lambda model: torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=1e-2, fused=True))


class FrozenAll(Frozen):
    """As most do: the optimizer is given all parameters."""
    optimizer = staticmethod(Case.optimizer)


class Unused(Case):
    """Blocks that a rank uses in some steps only, and one that nobody uses."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Residual() for _ in range(3))
            self.never = nn.Linear(3, 3)

        def forward(self, x):
            if float(x.sum()) > 24:
                x = self.blocks[0](x)
            return self.blocks[2](x) if float(x.detach()[0, 0]) < 0.3 else self.blocks[1](x)

    def make(self):
        return self.Model()


class Reused(Case):
    """A block that is called three times, and one of whose weights another module takes."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Residual() for _ in range(2))

        def forward(self, x):
            for _ in range(3):
                x = self.blocks[0](x)
            x = self.blocks[1](x)
            return functional.linear(x, self.blocks[0].inner[0].weight)[:, :WIDTH]

    def make(self):
        return self.Model()


class Buffers(Case):
    """BatchNorm's running means, which each rank has for itself."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH),
                                                nn.Linear(WIDTH, WIDTH))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.count += 1
            return self.last(self.norm(self.first(x)))

    def make(self):
        return self.Model()

    @staticmethod
    def between(model, batch):
        return [buffer.clone() for buffer in model.buffers()]


class Checkpointed(Case):
    reentrant = False

    class Model(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.blocks = nn.ModuleList(Residual() for _ in range(3))
            self.drop = nn.Dropout(0.2)
            self.reentrant = reentrant

        def forward(self, x):
            x = self.first(x)
            for one in self.blocks:
                x = checkpoint(lambda y, one=one: self.drop(one(y)), x,
                               use_reentrant=self.reentrant)
            return x

    def make(self):
        return self.Model(self.reentrant)


class CheckpointedReentrant(Checkpointed):
    reentrant = True


class CheckpointedBlock(Case):
    """Checkpointing inside of a block, as transformers have it."""

    class Inside(Residual):
        def forward(self, x):
            return x + checkpoint(self.inner, self.norm(x), use_reentrant=False)

    def make(self):
        return nn.Sequential(nn.Linear(WIDTH, WIDTH),
                             nn.Sequential(*[self.Inside() for _ in range(2)]))


class Autocast(Case):
    def make(self):
        return stack()

    @staticmethod
    def around(model, number):
        return torch.autocast("cpu", torch.bfloat16)


class Accumulated(Case):
    accumulation = 4

    def make(self):
        return stack()


class NoSync(Accumulated):
    @staticmethod
    def around(model, number):
        return model.no_sync() if number < 3 and hasattr(model, "no_sync") else \
            contextlib.nullcontext()


class Outputs(Case):
    """Blocks that take and return dicts and tuples."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = Residual(), Residual()

        def forward(self, state, *, scale):
            left, (right, extra) = state["left"], state["more"]
            return {"left": self.left(left) * scale, "more": (self.right(right) + left, extra),
                    "none": None}

    class Model(nn.Module):
        def __init__(self, pair):
            super().__init__()
            self.pairs = nn.ModuleList(pair() for _ in range(2))

        def forward(self, x):
            state = {"left": x, "more": (x * 2, [1, "text"])}
            for one in self.pairs:
                state = one(state, scale=0.5)
            return state

    def make(self):
        return self.Model(self.Pair)

    def loss(self, model, batch):
        out = model(batch)
        return (out["left"] * out["more"][0]).square().mean()


class Forwards(Case):
    """Two forwards, then one backward."""

    def make(self):
        return stack()

    def loss(self, model, batch):
        one, other = model(batch), model(batch.flip(0) * 0.5)
        return (one - other).square().mean() + one.mean()


class Backwards(Case):
    """Two backwards through one graph: a GAN's way. The daemons add the first ones of all ranks,
    then the second ones; torch adds a rank's."""
    limit = 1e-6

    def make(self):
        return stack()

    def loss(self, model, batch):
        out = model(batch)
        return torch.stack([out.square().mean(), out.abs().mean()])

    def backward(self, loss, backward):
        backward(loss[0], retain_graph=True)
        backward(loss[1])


class Penalty(Case):
    """A gradient penalty: a gradient of a gradient."""

    def make(self):
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def loss(self, model, batch):
        batch = batch.clone().requires_grad_()
        out = model(batch).sum()
        gradient, = torch.autograd.grad(out, batch, create_graph=True)
        return out.square() + (gradient.norm() - 1).square()


class Evaluated(Case):
    """Evaluation between steps, in both ways, and after them training goes on."""

    def make(self):
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), block())

    @staticmethod
    def between(model, batch):
        model.eval()
        with torch.no_grad():
            one = model(batch)
        with torch.inference_mode():
            other = model(batch).sum()
        model.train()
        return [one, other]


class Shapes(Case):
    """Scalars, empty parameters, integers, parameters of the model itself, lists and dicts."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))
            self.empty = nn.Parameter(torch.empty(0, 3))
            self.steps = nn.Parameter(torch.tensor([3]), requires_grad=False)
            self.list = nn.ParameterList(torch.randn(WIDTH) for _ in range(2))
            self.dict = nn.ParameterDict({"a": torch.randn(WIDTH, WIDTH), "b": torch.randn(1)})

        def forward(self, x):
            x = x @ self.dict["a"] * self.scale + self.dict["b"]
            return x * self.list[0] + self.list[1] + self.empty.sum() + self.steps

    def make(self):
        return self.Model()


class Groups(Case):
    """No decay of vectors, a smaller rate for the last layer."""

    def make(self):
        return stack()

    @staticmethod
    def optimizer(model):
        vectors = [p for p in model.parameters() if p.dim() < 2]
        last = [model[2].weight]
        rest = [p for p in model.parameters() if p.dim() >= 2 and p is not last[0]]
        return torch.optim.AdamW([{"params": rest}, {"params": vectors, "weight_decay": 0.0},
                                  {"params": last, "lr": 2.5e-3}], lr=1e-2, weight_decay=0.1,
                                 fused=True)


class Recurrent(Case):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.gru = nn.LSTM(WIDTH, WIDTH, 2), nn.GRU(WIDTH, WIDTH)

        def forward(self, x):
            return self.gru(self.lstm(x)[0])[0]

    def make(self):
        return self.Model()


class Images(Case):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Sequential(
                nn.Conv2d(1, WIDTH, 3, padding=1), nn.GroupNorm(2, WIDTH), nn.ReLU(inplace=True),
                nn.Conv2d(WIDTH, WIDTH, 3, stride=2), nn.ConvTranspose2d(WIDTH, 1, 2, bias=False))
            self.head = nn.utils.parametrizations.weight_norm(nn.Linear(64, WIDTH))

        def forward(self, x):
            return self.head(self.conv(x[:, None, None, :] * x[:, None, :, None]).flatten(1))

    def make(self):
        return self.Model()


class Attention(Case):
    """PyTorch's own transformer, whose evaluation takes another path."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.pooled = nn.EmbeddingBag(7, WIDTH)

        def forward(self, x):
            bag = self.pooled((x[:, :3].abs() * 10).long() % 7)
            return self.encoder(x[:, None] + bag[:, None]).squeeze(1)

    def make(self):
        return self.Model()

    @staticmethod
    def between(model, batch):
        model.eval()
        with torch.no_grad():
            out = model(batch)
        model.train()
        return [out]


CASES = {kind.__name__: kind for kind in (
    Tied, Frozen, FrozenAll, Unused, Reused, Buffers, Checkpointed, CheckpointedReentrant,
    CheckpointedBlock, Autocast, Accumulated, NoSync, Outputs, Forwards, Backwards, Penalty,
    Evaluated, Shapes, Groups, Recurrent, Images, Attention)}
