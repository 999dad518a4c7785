#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""What the daemons hold and move is what the plan says, to the byte, at every stage."""
import itertools

from harness import *


def plan(folder, world, settings):
    """zeroctl plan --json of the gpt model."""
    layers, path = folder / "layers.json", folder / "plan-config.json"
    layers.write_text(subprocess.run([str(GPT), "--layers-json"], capture_output=True, text=True,
                                     check=True).stdout)
    path.write_text(json.dumps(settings))
    run = subprocess.run([str(ZEROCTL), "plan", "--layers", str(layers), "--world", str(world),
                          "--config", str(path), "--json"], capture_output=True, text=True)
    check(run.returncode == 0, f"plan: {run.stderr}")
    return json.loads(run.stdout)


def memory_objects(pid):
    """{name: bytes} of the memory objects that a process holds open for itself."""
    out = {}
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(fd)
            flags = pathlib.Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text().split("flags:")[1].split()[0]
            if target.startswith("/memfd:zero-") and int(flags, 8) & 3 == os.O_RDWR:
                out[target.split("zero-")[1].split(" ")[0]] = os.stat(fd).st_blocks * 512
        except OSError:
            pass
    return out


def compare(world, stage, settings, name):
    group = Group(world, [GPT, "--steps", 100000000], settings)
    want = plan(group.folder, world, settings)
    steps = lambda: [r.get("step", 0) for r in (status(group.runtime) or {}).get("ranks", [])]
    until(lambda: len(steps()) == world and min(steps()) >= 2, what=f"{name} trains")
    for rank in status(group.runtime)["ranks"]:
        total = 0
        for arena, sizes in rank["arenas"].items():
            check(sizes["bytes"] == sizes["planned"] == want["per_rank"][arena],
                  f"{name} rank {rank['rank']} {arena}: {sizes}, plan {want['per_rank'][arena]}")
            total += sizes["bytes"]
        check(total == want["per_rank"]["total"], f"{name}: total {total}, plan {want['per_rank']['total']}")
        held = memory_objects(rank["pid"])
        for arena, sizes in rank["arenas"].items():
            check(held.get(arena, 0) == sizes["bytes"],
                  f"{name} {arena}: {held.get(arena, 0)} bytes are allocated, {sizes['bytes']} shown")
        moved = rank["traffic"]
        for kind in ("gathered", "reduced"):
            check(moved[f"last_{kind}_bytes"] == want["traffic"][kind],
                  f"{name} {kind}: {moved[f'last_{kind}_bytes']} bytes, plan {want['traffic'][kind]}")
    run = subprocess.run([str(ZEROCTL), "plan", "--runtime-dir", str(group.runtime), "--json"],
                         capture_output=True, text=True)
    got = json.loads(run.stdout)
    for arena in rank["arenas"]:
        check((got["per_rank"][arena], got["formula"][arena])
              == (want["per_rank"][arena], want["formula"][arena]),
              f"{name}: the running group's plan of {arena}: {got['formula']}, want {want['formula']}")
    text = subprocess.run([str(ZEROCTL), "plan", "--runtime-dir", str(group.runtime)],
                          capture_output=True, text=True).stdout
    check(want["formula"]["param"] in text and ("reduce_bucket_size" in text) == (stage > 1),
          f"{name}: the running group's plan as a table: {text}")
    group.process.terminate()
    group.wait(60)
    group.close()


def main():
    sgd = {"type": "SGD", "params": {"lr": 1e-3, "momentum": 0.9}}
    amsgrad = {"type": "AdamW", "params": {"lr": 1e-3, "amsgrad": True}}
    for world, stage in itertools.product((1, 2, 3, 8), (0, 1, 2, 3)):
        batch = {"train_batch_size": 2 * world, "gradient_accumulation_steps": 2}
        compare(world, stage, config(world, stage, "bf16", **batch), f"world {world} stage {stage} bf16")
    for stage, optimizer in itertools.product((0, 1, 2, 3), (sgd, amsgrad)):
        compare(2, stage, config(2, stage, "fp32", optimizer=optimizer),
                f"stage {stage} fp32 {optimizer['type']}")
    small = {"reduce_bucket_size": 30000, "overlap_comm": False}
    compare(2, 3, config(2, 3, "fp16", zero_optimization=small, fp16={"initial_scale_power": 8}), "small bucket")
    done()


if __name__ == "__main__":
    main()
