#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""zerorun's trainers and torchrun's, beside daemons that are there already, end with the same
weights, also when one is killed and torchrun starts all again; README's example trains."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from place import SOURCE
from harness import ZERORUN, check, done, status, until

TRAIN = (SOURCE / "client" / "examples" / "train_gpt.py", "--steps", "100")
# What a launcher sets is not inherited.
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                               "ZERO_SOCKET", "ZERO_RUNTIME_DIR", "ZERO_CONFIG")}


class Run:
    """A program in a process group of its own, and what it writes."""

    def __init__(self, command, **environment):
        self.out = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(part) for part in command], text=True,
                                        env={**ENVIRONMENT, **environment}, stdout=self.out,
                                        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                        start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(60)
        self.out.close()

    def text(self):
        self.out.seek(0)
        return self.out.read()

    def end(self):
        """Its output, when it has ended."""
        code = self.process.wait(300)
        check(code == 0, f"{self.process.args} ended with {code}:\n{self.text()}")
        return self.text()


def weights(text):
    found = re.search(r"weights sha256=([0-9a-f]{64}) step=100 ", text)
    check(found, f"100 steps, and a hash of the weights:\n{text}")
    return found and found[1]


def zerorun(folder):
    with Run([ZERORUN, "-n", "2", "--runtime-dir", folder, "--", sys.executable, *TRAIN]) as run:
        return weights(run.end())


def torchrun(folder, ranks=2, restarts=0, **environment):
    return Run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
                "--master-port", "0", "--max-restarts", str(restarts), *TRAIN],
               ZERO_RUNTIME_DIR=str(folder), **environment)


def daemons(folder):
    group = Run([ZERORUN, "-n", "2", "--runtime-dir", folder, "--daemons-only"])
    until(lambda: (folder / "rank-0.sock").exists() and (folder / "rank-1.sock").exists(),
          what="daemons")
    return group


def beside_daemons(folder):
    with daemons(folder), torchrun(folder) as run:
        return weights(run.end())


def kill_one(folder):
    """Rank 1's trainer, in the middle; torchrun ends the other and starts both."""
    with daemons(folder), torchrun(folder, restarts=1) as run:
        killed = until(lambda: trainer(folder, 3), 120, "step 3")
        os.kill(killed, signal.SIGKILL)
        until(lambda: trainer(folder, 3) not in (None, killed), 120, "another trainer")
        return weights(run.end())


def trainer(folder, step):
    """The process of rank 1's trainer, from a step on."""
    ranks = (status(folder) or {}).get("ranks", [])
    if len(ranks) == 2 and ranks[1]["step"] >= step:
        return ranks[1]["trainer_pid"] or None
    return None


def wrong_world(folder):
    with daemons(folder), torchrun(folder, ranks=1) as run:
        code = run.process.wait(120)
        check(code != 0 and "WORLD_SIZE=1" in run.text(), f"one trainer of two: {run.text()}")


def readme(folder):
    text = (SOURCE / "README.md").read_text()
    script = folder.parent / "train.py"
    script.write_text(re.search(r"```python\n(import torch\n.*?)```", text, re.DOTALL)[1]
                      + "print('trained', engine.global_steps, engine.result.outcome)\n")
    with Run([ZERORUN, "-n", "2", "--runtime-dir", folder, "--", sys.executable, script]) as run:
        check(run.end().count("trained 32 applied") == 2, f"README's example: {run.text()}")


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zt-"))
    try:
        hashes = {case.__name__: case(folder / case.__name__)
                  for case in (zerorun, beside_daemons, kill_one)}
        check(len(set(hashes.values())) == 1, f"the same weights: {hashes}")
        wrong_world(folder / "wrong")
        readme(folder / "readme")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    done()


if __name__ == "__main__":
    main()
