# SPDX-License-Identifier: MIT
"""The optimizer runs in the daemons. Here its groups are found, in the user's torch optimizer or in
the config, and kept as param_groups, so that torch's schedulers, and users, change them as ever.
"""
import math
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import torch
from torch import nn

from .. import errors

# What a group may set for itself, by the name in param_groups: the names in zerod's group.
GROUP_KEYS = {"lr": ("lr",), "weight_decay": ("weight_decay",), "betas": ("beta1", "beta2"),
              "eps": ("eps",), "momentum": ("momentum",), "dampening": ("dampening",)}
_SHARED = {"AdamW": ("amsgrad",), "Adam": ("amsgrad",), "SGD": ("nesterov",)}
_OWN = {"AdamW": ("lr", "betas", "eps", "weight_decay"), "Adam": ("lr", "betas", "eps",
        "weight_decay"), "SGD": ("lr", "momentum", "dampening", "weight_decay")}
_DEFAULTS: Dict[str, Dict[str, Any]] = {
    "AdamW": dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False),
    "Adam": dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False),
    "SGD": dict(lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False),
}


class SteppedByHand(errors.InvalidState, RuntimeError):
    """optimizer.step() was called."""

    def __init__(self) -> None:
        super().__init__("the daemons update the weights: call engine.step() in place of "
                         "optimizer.step()", "step optimizer")


def _no_step(*_args: Any, **_kwargs: Any) -> None:
    raise SteppedByHand()


# Schedulers look at these to see that the optimizer steps; engine.step() is what does.
_no_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


class ZeroOptimizer(torch.optim.Optimizer):
    """param_groups of what the daemons run: engine.step() reads lr, weight_decay, betas, eps,
    momentum and dampening of each group. It has no state here, and cannot be stepped by hand."""

    def __init__(self, kind: str, groups: List[Dict[str, Any]],
                 base: Optional[torch.optim.Optimizer] = None) -> None:
        super().__init__([dict(group) for group in groups], dict(_DEFAULTS[kind]))
        self.kind = kind
        self.optimizer = base
        if base is not None:
            self.param_groups = base.param_groups
            base.step = _no_step  # type: ignore[method-assign, assignment]
            base._opt_called = True  # type: ignore[attr-defined]
        self.step = _no_step  # type: ignore[method-assign, assignment]
        self._opt_called = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gradients leave as backward makes them: there is nothing to clear."""

    def state_dict(self) -> Dict[str, Any]:
        raise errors.Unsupported("the optimizer's state is in the daemons: save it with "
                                 "engine.save_checkpoint(), look at it with engine.read()",
                                 "state_dict of optimizer")

    def load_state_dict(self, _state: Any) -> None:
        raise errors.Unsupported("the optimizer's state is in the daemons: load it with "
                                 "engine.load_checkpoint()", "load_state_dict of optimizer")

    def add_param_group(self, group: Dict[str, Any]) -> None:
        if hasattr(self, "kind"):
            raise errors.Unsupported("groups are registered with the daemons: add them before "
                                     "initialize", "add_param_group")
        super().add_param_group(group)


@dataclass
class OptimizerPlan:
    """kind and shared: for the config; group_of: by parameter, those that are trained."""
    facade: ZeroOptimizer
    group_of: Dict[nn.Parameter, int]

    def section(self) -> Dict[str, Any]:
        """The config's "optimizer"."""
        groups, kind = self.facade.param_groups, self.facade.kind
        names = _OWN[kind] + _SHARED[kind]
        params = {name: _number(groups[0].get(name, _DEFAULTS[kind][name])) for name in names}
        if kind == "Adam":
            params["adam_w_mode"] = False  # DeepSpeed's Adam is AdamW unless it is told so
        return {"type": kind, "params": params}

    def groups(self) -> List[Dict[str, float]]:
        """What each group has now, for registration and for a step."""
        kind = self.facade.kind
        out = []
        for group in self.facade.param_groups:
            values: Dict[str, float] = {}
            for name in _OWN[kind]:
                value = _number(group.get(name, _DEFAULTS[kind][name]))
                own = value if isinstance(value, list) else [value]
                values.update(zip(GROUP_KEYS[name], own))
            out.append(values)
        return out


def _number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value)
    if isinstance(value, (tuple, list)):
        return [float(one) for one in value]
    return value if isinstance(value, bool) else float(value)


def _kind_of(optimizer: torch.optim.Optimizer) -> str:
    for base in type(optimizer).__mro__:
        kind = getattr(base, "zero_kind", None)
        if kind is not None:
            return kind(optimizer) if callable(kind) else kind
        if base.__module__.startswith("torch.optim") and base.__name__ in _DEFAULTS:
            return base.__name__
    raise errors.Unsupported(
        f"optimizer {type(optimizer).__module__}.{type(optimizer).__name__}: zerod has Adam, AdamW "
        "and SGD of torch.optim (and DeepSpeed's names for them)", "take optimizer")


def _check_groups(kind: str, groups: List[Dict[str, Any]]) -> None:
    for name in ("maximize", "differentiable"):
        if any(group.get(name) for group in groups):
            raise errors.Unsupported(f"{kind} with {name}=True: zerod makes the loss smaller, "
                                     "outside of autograd", "take optimizer")
    for name in _SHARED[kind]:
        values = {bool(group.get(name, _DEFAULTS[kind][name])) for group in groups}
        if len(values) > 1:
            raise errors.Unsupported(f"{name} differs among the optimizer's groups: zerod has one "
                                     "for all", "take optimizer")
    if kind == "AdamW" and any(group.get("decoupled_weight_decay") is False for group in groups):
        raise errors.Unsupported("AdamW whose decay is not decoupled: use Adam", "take optimizer")


def _from_config(kind: str, params: Mapping[str, Any], model_parameters: Iterable[Any],
                 ) -> List[Dict[str, Any]]:
    own = {name: value for name, value in params.items() if name in _DEFAULTS[kind]}
    given = list(model_parameters)
    if given and isinstance(given[0], tuple):  # named_parameters()
        given = [parameter for _, parameter in given]
    if not given or not isinstance(given[0], Mapping):
        given = [{"params": given}]
    out = []
    for group in given:
        members = group["params"]
        members = [members] if isinstance(members, torch.Tensor) else list(members)
        members = [one[1] if isinstance(one, tuple) else one for one in members]
        out.append({**_DEFAULTS[kind], **own, **group, "params": members})
    return out


def _config_kind(section: Mapping[str, Any]) -> Tuple[str, Dict[str, Any]]:
    """The kind, as zerod's config has it, of a section spelt as DeepSpeed's users do."""
    kind = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}.get(str(section.get("type")).lower())
    params = dict(section.get("params") or {})
    if kind is None:
        raise errors.Unsupported(f"optimizer type {section.get('type')!r}: zerod has Adam, AdamW "
                                 "and SGD", "take optimizer")
    decoupled = params.pop("adam_w_mode", True)
    if kind == "Adam" and decoupled:
        kind = "AdamW"
        params.setdefault("weight_decay", 0.0)
    return kind, params


def plan_optimizer(model: nn.Module, config: Dict[str, Any],
                   optimizer: Any = None, model_parameters: Optional[Iterable[Any]] = None,
                   ) -> OptimizerPlan:
    """optimizer: one of torch.optim, or a callable that makes one of parameters; None: the
    config's, for model_parameters (parameters, or dicts as torch.optim takes), default all that
    require gradients. Writes the config's section. Unsupported, InvalidArgument."""
    if model_parameters is None:
        model_parameters = [p for p in model.parameters() if p.requires_grad]
    if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(model_parameters)
    if optimizer is not None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise errors.InvalidArgument(f"optimizer is a {type(optimizer).__name__}, not a torch "
                                         "optimizer", "take optimizer")
        kind, groups = _kind_of(optimizer), optimizer.param_groups
        rest: Dict[str, Any] = {}
    else:
        if not config.get("optimizer"):
            raise errors.InvalidArgument("no optimizer: give one to initialize, or the config an "
                                         '"optimizer" section', "take optimizer")
        kind, params = _config_kind(config["optimizer"])
        groups = _from_config(kind, params, model_parameters)
        rest = {name: value for name, value in params.items() if name not in _DEFAULTS[kind]}
    _check_groups(kind, groups)
    facade = ZeroOptimizer(kind, groups, optimizer)
    group_of = _assign(model, facade.param_groups)
    plan = OptimizerPlan(facade, group_of)
    section = plan.section()
    section["params"].update(rest)
    config["optimizer"] = section
    return plan


def _assign(model: nn.Module, groups: List[Dict[str, Any]]) -> Dict[nn.Parameter, int]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    group_of: Dict[nn.Parameter, int] = {}
    for number, group in enumerate(groups):
        for place, parameter in enumerate(group["params"]):
            if parameter not in names:
                raise errors.InvalidArgument(
                    f"parameter {place} of the optimizer's group {number}, of shape "
                    f"{tuple(parameter.shape)}, is not one of the model's: make the optimizer of "
                    "model.parameters(), after the model has its final dtype and device",
                    "take optimizer")
            if parameter.requires_grad:
                group_of[parameter] = number
    if not group_of:
        raise errors.InvalidArgument("no parameter of the optimizer requires a gradient",
                                     "take optimizer")
    return group_of


def check_ratios(registered: List[Dict[str, float]], now: List[Dict[str, float]]) -> None:
    """A step has one lr: the groups' may only change in proportion. Unsupported."""
    base = registered[0]["lr"]
    for number, (one, other) in enumerate(zip(registered, now)):
        for name, value in one.items():
            wanted = value / base * now[0]["lr"] if name == "lr" and base else value
            if not math.isclose(other[name], wanted, rel_tol=1e-9):
                raise errors.Unsupported(
                    f"{name} of the optimizer's group {number} was {value:g} when it was "
                    f"registered and is {other[name]:g}: this version of zerod changes the lr of "
                    "all groups in proportion, and nothing else", "step")
