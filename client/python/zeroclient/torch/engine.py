# SPDX-License-Identifier: MIT
"""The engine: a module whose parameters, gradients and optimizer are in zerod.

    engine = zeroclient.torch.initialize(model, "config.json")
    for batch in engine.loader(loader):
        loss = engine(batch)
        engine.backward(loss)
        engine.step()

Thread  one thread calls the engine.
Fork    a forked child must not use the model: its weights are not there.
Aborts  when another rank's trainer or a daemon dies, the step in progress is dropped everywhere.
        engine.step() puts the random states and buffers back; then a loader from engine.loader()
        yields the step's batches again, and without one step() raises StepAborted: make the same
        forward, backward and step once more, or end, and be started again.
Start   again: initialize() finds the group's last committed step, and engine.global_steps, random
        states, buffers, the scheduler and loaders go on from there.
"""
import contextlib
import json
import sys
import warnings
from typing import Any, Dict, Iterator, List, Mapping, Optional

import torch
from torch import nn
from torch.utils.data import DataLoader

from .. import _lib, errors
from ..client import Client, StepResult, config_text
from ..discover import check_world
from . import guard, state
from .data import ResumableLoader
from .gradients import Gradients
from .layers import Plan, is_ours, plan_layers
from .optimizer import OptimizerPlan, ZeroOptimizer, check_ratios, plan_optimizer
from .weights import TORCH_DTYPES, Weights

_MOST_BACKWARDS = 64  # without a step(): nobody wants so many losses


class Engine(nn.Module):
    """Made by initialize(). module: the user's; optimizer: its param_groups are what the next step
    uses; lr_scheduler: stepped by every applied step; info: zero_client_info."""

    def __init__(self, model: nn.Module, client: Client, plan: Plan, optimizer: OptimizerPlan,
                 lr_scheduler: Any = None) -> None:
        super().__init__()
        self.module = model
        self.client = client
        self.lr_scheduler = lr_scheduler
        self.result: Optional[StepResult] = None
        self.skipped_steps = 0
        self._plan, self._optimizer = plan, optimizer
        self._registered = optimizer.groups()
        self._cast_buffers()
        self._loaders: Dict[str, ResumableLoader] = {}
        self._restored: Dict[str, Any] = {}  # what the last committed step says, after a start
        self._losses: List[torch.Tensor] = []
        self._backwards = 0
        self._boundary: Optional[bool] = None
        self._buffers_then = self._buffer_versions()
        self._warned = False
        self._weights = Weights(client, plan)
        self._untrained = {slot.parameter for slots in self._weights.layers for slot in slots
                           if slot.parameter.requires_grad
                           and slot.parameter not in optimizer.group_of}
        self._fill()
        self._weights.bind()
        self._gradients = Gradients(self._weights, [layer.trained for layer in plan.layers])
        self.micro_steps = self.global_steps * self.accumulation
        self._blob = b""
        self._go_on()

    # ---- what it is ----

    @property
    def info(self) -> Any:
        return self.client.info

    @property
    def optimizer(self) -> ZeroOptimizer:
        return self._optimizer.facade

    @property
    def accumulation(self) -> int:
        return self.info.accumulation

    @property
    def global_steps(self) -> int:
        """Committed steps of the group, skipped ones included."""
        return self.info.step

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(super().__getattr__("module"), name)

    # ---- start ----

    def _fill(self) -> None:
        while not self.info.filled:
            try:
                self.client.fill_from_rank_0()
                self._weights.fill()
            except errors.StepAborted:
                continue  # a daemon died, and has come back without values

    def _cast_buffers(self) -> None:
        dtype = TORCH_DTYPES[self.info.param_dtype]
        if dtype == torch.float32:
            return
        for module in self.module.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    module._buffers[name] = buffer.to(dtype)

    def _go_on(self) -> None:
        """From the last committed step, if there is one."""
        blob = self.client.blob() if self.info.step > 0 else b""
        if blob:
            self._restore(state.decode(blob), everything=True)
        self._blob = self._encode_state()

    # ---- a step ----

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> torch.Tensor:
        """Multiplies by the loss scale (fp16), and hands out gradients as they are made. The
        daemons divide their sum by world size x gradient_accumulation_steps: give the loss as it
        is."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise errors.InvalidArgument("backward needs the loss, a tensor of one element",
                                         "backward")
        self._backwards += 1
        if self._backwards > _MOST_BACKWARDS:
            raise errors.InvalidState(f"{_MOST_BACKWARDS} backwards without engine.step(): call it "
                                      "after each micro-batch's backward", "backward")
        self._losses.append(loss.detach())
        scale = self.info.loss_scale
        (loss.float() * scale if scale != 1 else loss).backward(retain_graph=retain_graph)
        self._gradients.flush()
        return loss

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next step() updates the weights."""
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self.accumulation == 0

    def set_gradient_accumulation_boundary(self, is_boundary: Optional[bool]) -> None:
        """Decides it by hand from now on; None: by counting again."""
        self._boundary = is_boundary

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """For scripts that have it: every backward adds to the daemons' sums in any case, and
        nothing is updated before step()."""
        yield

    def step(self, scalars: Optional[Mapping[str, float]] = None) -> Optional[StepResult]:
        """Ends a micro-step; at the boundary, one update of the group. scalars: shown by zeroctl
        status, beside the mean loss. Returns the update's result, None if there was none (or it
        was aborted, and the loader begins it again)."""
        self._gradients.flush()
        self._backwards = 0
        if self._weights.aborted is not None:
            self._abort(self._weights.aborted)
            return None
        if not self.is_gradient_accumulation_boundary():
            self.micro_steps += 1
            return None
        self._check_frozen()
        blob = self._encode_state()
        try:
            result = self._client_step(blob, scalars)
        except errors.StepAborted as error:
            self._abort(error)
            return None
        self.micro_steps += 1
        self._blob = blob
        self._ended(result)
        return result

    def _client_step(self, blob: bytes, scalars: Optional[Mapping[str, float]]) -> StepResult:
        groups = self._optimizer.groups()
        check_ratios(self._registered, groups)
        losses = [float(loss) for loss in self._losses]
        mean = sum(losses) / len(losses) if losses else float("nan")
        return self.client.step(lr=groups[0]["lr"], blob=blob,
                                scalars={"loss": mean, **(scalars or {})})

    def _ended(self, result: StepResult) -> None:
        self.result = result
        self._losses.clear()
        self._weights.step_ended()
        self._weights.touched()
        for loader in self._loaders.values():
            loader.committed()
        if result.outcome != "applied":
            self.skipped_steps += 1
        elif self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def _abort(self, error: errors.StepAborted) -> None:
        self._weights.aborted = None
        self._gradients.drop()
        self._weights.step_ended()
        self._losses.clear()
        self.micro_steps = self.micro_steps // self.accumulation * self.accumulation
        self._restore(state.decode(self._blob), everything=False)
        loaders = [loader for loader in self._loaders.values() if loader.has_batches()]
        if not loaders:
            raise error
        print(f"zeroclient: rank {self.info.rank}: step {self.global_steps + 1} is begun again: "
              f"{error.text}", file=sys.stderr, flush=True)
        for loader in loaders:
            loader.rewind()

    def _check_frozen(self) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            for number, layer in enumerate(self._plan.layers):
                if layer.trained:
                    continue
                for slot in self._weights.layers[number]:
                    if slot.parameter.requires_grad and slot.parameter not in self._untrained:
                        raise errors.InvalidState(
                            f"{slot.name} was frozen when the engine was made and requires a "
                            "gradient now: set requires_grad before initialize", "step")

    # ---- the state of the trainer ----

    def loader(self, loader: Any, name: Optional[str] = None) -> ResumableLoader:
        """The loader of micro-batches, with its position in every step. Name them if there are
        several. InvalidArgument: its batches are not the config's micro-batches."""
        self._check_batch(loader)
        out = ResumableLoader(loader, name or f"loader{len(self._loaders)}")
        self._loaders[out.name] = out
        found = self._restored.get("loaders", {}).get(out.name)
        if found is not None:
            out.load_state_dict(found, self._restored["random"])
        return out

    def _check_batch(self, loader: Any) -> None:
        info, size = self.info, getattr(loader, "batch_size", None)
        if isinstance(loader, DataLoader) and size is not None and size != info.micro_batch:
            raise errors.InvalidArgument(
                f"the loader's batch_size is {size}, the config's train_micro_batch_size_per_gpu "
                f"{info.micro_batch} (train_batch_size {info.train_batch} = {info.micro_batch} x "
                f"{info.accumulation} micro-steps x {info.world} ranks): make them equal",
                "take loader")

    def _buffer_list(self) -> Iterator[Any]:
        for path, module in self.module.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._non_persistent_buffers_set:
                    yield f"{path}.{name}" if path else name, buffer

    def _buffer_versions(self) -> Dict[str, Any]:
        return {name: (id(buffer), buffer._version) for name, buffer in self._buffer_list()}

    def _changed_buffers(self) -> Dict[str, torch.Tensor]:
        return {name: buffer for name, buffer in self._buffer_list()
                if self._buffers_then.get(name) != (id(buffer), buffer._version)}

    def _encode_state(self) -> bytes:
        """For the step that is about to be committed."""
        tree: Dict[str, Any] = {
            "random": state.random_state(),
            "updates": self.info.updates,
            "skipped": self.skipped_steps,
            "groups": self._optimizer.groups(),
            "loaders": {name: one.state_dict() for name, one in self._loaders.items()},
        }
        if self.lr_scheduler is not None and hasattr(self.lr_scheduler, "state_dict"):
            tree["scheduler"] = self.lr_scheduler.state_dict()
        buffers = self._changed_buffers()
        out = state.encode({**tree, "buffers": buffers})
        if len(out) > _lib.MAX_BLOB and buffers:
            if not self._warned:
                size = sum(b.numel() * b.element_size() for b in buffers.values())
                warnings.warn(f"{len(buffers)} buffers of {size} bytes change while the model "
                              f"trains; a step keeps {_lib.MAX_BLOB} bytes, so that they are not "
                              "kept: a trainer that is started again begins with initial ones")
                self._warned = True
            out = state.encode(tree)
        if len(out) > _lib.MAX_BLOB:
            sizes = ", ".join(f"{key} {len(state.encode(value))}" for key, value in tree.items())
            raise errors.TooLarge(f"the trainer's state has {len(out)} bytes, a step keeps "
                                  f"{_lib.MAX_BLOB}: {sizes}", "step")
        return out

    def _restore(self, tree: Dict[str, Any], everything: bool) -> None:
        buffers = dict(self._buffer_list())
        for name, value in tree.get("buffers", {}).items():
            if name not in buffers or buffers[name].shape != value.shape:
                raise errors.Mismatch(f"the last step has a buffer {name} of shape "
                                      f"{tuple(value.shape)}, the model has not", "restore")
            buffers[name].copy_(value)
        if everything:
            self.skipped_steps = tree["skipped"]
            self._restore_schedule(tree)
            self._restored.update(tree)
        state.set_random_state(tree["random"])

    def _restore_schedule(self, tree: Dict[str, Any]) -> None:
        if self.lr_scheduler is not None and "scheduler" in tree:
            self.lr_scheduler.load_state_dict(tree["scheduler"])
            groups = tree["groups"]
            if len(groups) == len(self.optimizer.param_groups):
                for group, values in zip(self.optimizer.param_groups, groups):
                    group["lr"] = values["lr"]
            if self.info.updates > tree["updates"]:
                self.lr_scheduler.step()

    # ---- the weights ----

    def state_dict(self, *args: Any, **kwargs: Any) -> Dict[str, Any]:  # type: ignore[override]
        """The module's, names without a prefix. Its tensors view the weights, at any stage: nothing
        is copied, nothing can be written, and the next step changes them; clone what must stay."""
        return self.module.state_dict(*args, **kwargs)

    def get_global_grad_norm(self) -> Optional[float]:
        """Of the last step's mean gradient, before clipping."""
        return self.result.grad_norm if self.result is not None else None

    def was_step_applied(self) -> bool:
        return self.result is not None and self.result.outcome == "applied"

    def destroy(self) -> None:
        """Detaches; the module keeps copies of the weights."""
        self._gradients.remove()
        self._weights.unbind()
        self.client.close()


def _config(config: Any) -> Dict[str, Any]:
    if isinstance(config, Mapping):
        return json.loads(json.dumps(config))
    text = config_text(config)
    try:
        out = json.loads(text)
    except ValueError as error:
        raise errors.ConfigError(f"the config is not JSON: {error}", "read config") from error
    if not isinstance(out, dict):
        raise errors.ConfigError("the config is not a JSON object", "read config")
    return out


def _check_dtypes(model: nn.Module, config: Mapping[str, Any]) -> None:
    half = any((config.get(name) or {}).get("enabled") for name in ("bf16", "bfloat16", "fp16"))
    for name, parameter in model.named_parameters():
        if not is_ours(parameter) and not parameter.is_complex():
            continue
        if parameter.device.type not in ("cpu", "meta"):
            raise errors.Unsupported(f"{name} is on {parameter.device}: this version of zerod "
                                     "trains on the CPU; do not move the model", "take model")
        if parameter.dtype == torch.float32 or half and parameter.dtype in (torch.float16,
                                                                            torch.bfloat16):
            continue
        raise errors.InvalidArgument(
            f"{name} is {parameter.dtype}, and the config asks for "
            f"{'16 bits' if half else 'fp32'}: set bf16.enabled or fp16.enabled in the config, or "
            "make the model float32 with model.float()", "take model")


def _specs(plan: Plan, optimizer: OptimizerPlan) -> List[Any]:
    groups = optimizer.groups()
    base = groups[0]["lr"]
    out = []
    for layer in plan.layers:
        tensors = []
        for name, parameter in layer.parameters:
            group = groups[optimizer.group_of[parameter]] if layer.trained else None
            scale = 0.0 if group is None else group["lr"] / base if base else 1.0
            decay = 0.0 if group is None else group["weight_decay"]
            tensors.append((name, tuple(parameter.shape), scale, decay))
        out.append((layer.name, tensors))
    return out


def initialize(model: nn.Module, config: Any = None, *, optimizer: Any = None,
               model_parameters: Any = None, lr_scheduler: Any = None, wrap: Any = None,
               socket: Optional[str] = None, deadline: float = 60.0) -> Engine:
    """Gives the model's parameters to zerod: initial values are rank 0's; the memory that the model
    had is freed.

    config: DeepSpeed's JSON, as a dict, a path or text; None: what ZERO_CONFIG names. optimizer:
    torch.optim's AdamW, Adam or SGD, or a callable that makes one of parameters; None: the
    config's, for model_parameters. lr_scheduler: of torch, or a callable that makes one of the
    optimizer. wrap: what is a layer, see layers.plan_layers. socket, deadline: see Client.
    Errors: those of Client.register, and InvalidArgument, Unsupported for what is given."""
    if not isinstance(model, nn.Module):
        raise errors.InvalidArgument(f"the model is a {type(model).__name__}, not a "
                                     "torch.nn.Module", "initialize")
    if any(isinstance(p, guard.ReadOnlyParameter) for p in model.parameters()):
        raise errors.InvalidState("the model belongs to an engine already", "initialize")
    settings = _config(config)
    settings.pop("scheduler", None)
    _check_dtypes(model, settings)
    chosen = plan_optimizer(model, settings, optimizer, model_parameters)
    plan = plan_layers(model, lambda parameter: parameter in chosen.group_of, wrap)
    client = Client(socket, deadline=deadline)
    try:
        check_world(client.info.world)
        client.register(_specs(plan, chosen), settings)
        if callable(lr_scheduler) and not hasattr(lr_scheduler, "step"):
            lr_scheduler = lr_scheduler(chosen.facade)
        return Engine(model, client, plan, chosen, lr_scheduler)
    except BaseException:
        with contextlib.suppress(errors.InvalidState):
            client.close()
        raise
