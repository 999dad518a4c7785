# SPDX-License-Identifier: MIT
"""What test_parity.py runs under zerorun: parity_trainer.py CASE OUT; rank 0 writes the fp32 master
weights to OUT."""
import sys

import torch
import zeroclient.torch
from parity_model import BATCH, CASES, STEPS, make_model, micro_batches
from safetensors.torch import save_file


def main():
    kind, options, clipping, accumulation, dtype = CASES[sys.argv[1]]
    model = make_model()
    config = {"train_batch_size": BATCH, "gradient_accumulation_steps": accumulation,
              "gradient_clipping": clipping, "zero_optimization": {"stage": int(sys.argv[3])}}
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    engine = zeroclient.torch.initialize(
        model, config, optimizer=getattr(torch.optim, kind)(model.parameters(), **options))
    for step in range(STEPS):
        for batch in micro_batches(step, engine.info.rank, engine.info.world, accumulation):
            engine.backward(engine(batch))
            engine.step()
    if engine.info.rank == 0:
        master = {}
        for number, layer in enumerate(engine.client.layers):
            for index, tensor in enumerate(layer.tensors):
                flat = torch.frombuffer(engine.client.read("master", number, index),
                                        dtype=torch.float32)
                master[tensor.name] = flat.view(tensor.shape).clone()
        save_file(master, sys.argv[2])


main()
