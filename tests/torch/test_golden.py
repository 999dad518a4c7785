#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""train_gpt.py has the golden losses of the C trainer's test, one hash over the stages, and in 16
bits it learns as well as the C trainer must."""
import sys

from place import SOURCE
from harness import done
from test_gpt_golden import golden, precision, same, stage, train

COMMAND = (sys.executable, SOURCE / "client" / "examples" / "train_gpt.py")


def main():
    for world in (1, 2):
        same(f"N={world} fp32, stages 0-3",
             [golden(world, number, COMMAND, 5e-5) for number in range(4)])
    same("N=2 bf16 accumulation 4, stages 0-3",
         [train(2, 10, stage(number), "bf16.enabled=true", "gradient_accumulation_steps=4",
                command=COMMAND)[0] for number in range(4)])
    for dtype in ("bf16", "fp16"):
        precision(dtype, COMMAND)
    done()


if __name__ == "__main__":
    main()
