# SPDX-License-Identifier: MIT
"""The model, data and cases of test_parity.py, for zerod's trainer and for plain PyTorch."""
import torch
from torch import nn
from torch.nn import functional

STEPS, BATCH, SEQUENCE, VOCABULARY, WIDTH = 20, 8, 16, 61, 32

# name: optimizer of torch.optim and its options, clipping (0: none), accumulation, dtype
CASES = {
    "AdamW": ("AdamW", dict(lr=1e-2, weight_decay=0.1), 0, 1, "fp32"),
    "AdamW amsgrad": ("AdamW", dict(lr=1e-2, amsgrad=True), 0, 1, "fp32"),
    "Adam": ("Adam", dict(lr=1e-2, weight_decay=0.01, betas=(0.8, 0.99)), 0, 1, "fp32"),
    "SGD": ("SGD", dict(lr=0.1), 0, 1, "fp32"),
    "SGD nesterov": ("SGD", dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01), 0, 1,
                     "fp32"),
    "clipping": ("AdamW", dict(lr=1e-2), 0.5, 1, "fp32"),
    "accumulation": ("AdamW", dict(lr=1e-2), 0, 2, "fp32"),
    "clipping, accumulation": ("SGD", dict(lr=0.1, momentum=0.9), 0.5, 2, "fp32"),
    "bf16": ("AdamW", dict(lr=1e-2, weight_decay=0.1), 0, 1, "bf16"),
    "bf16 SGD clipping, accumulation": ("SGD", dict(lr=0.1, momentum=0.9), 0.5, 2, "bf16"),
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, bias=False, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(functional.gelu(self.up(x)))


class Model(nn.Module):
    """Its embedding is also its head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))[:, :-1].float()
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def make_model():
    torch.manual_seed(1)
    return Model()


def tokens(step):
    """The group's batch."""
    random = torch.Generator().manual_seed(1000 + step)
    return torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=random)


def micro_batches(step, rank, world, accumulation):
    """A rank's part, in micro-batches."""
    return tokens(step).chunk(world)[rank].chunk(accumulation)
