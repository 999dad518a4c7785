# SPDX-License-Identifier: MIT
"""Which parameters make which layer: a layer is what is gathered, submitted and released as one.

The automatic rule: the members of a repeated container (the blocks of a transformer) are a layer
each; what stands before, between and behind them is grouped in the order of the model, up to
REST_ELEMENTS. A wrap policy names the modules instead, and the rest is grouped in the same way.
"""
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from torch import nn

from .. import errors

REST_ELEMENTS = 4 << 20  # about: a group ends before the module that would exceed it
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


@dataclass
class LayerPlan:
    """Parameters by name, in the order in which they stand in the layer."""
    name: str
    parameters: List[Tuple[str, nn.Parameter]] = field(default_factory=list)
    trained: bool = True


@dataclass
class Plan:
    """layers, and units: the modules that need layers (by number) while they compute."""
    layers: List[LayerPlan]
    units: List[Tuple[nn.Module, List[int]]]


def is_ours(parameter: nn.Parameter) -> bool:
    """Whether zerod holds it: what is empty or no float (quantised) stays in the trainer."""
    return parameter.is_floating_point() and parameter.numel() > 0


def _repeated(module: nn.Module) -> bool:
    if not isinstance(module, _CONTAINERS):
        return False
    kinds = [type(child) for child in module.children() if _has_parameters(child)]
    return len(set(kinds)) < len(kinds)


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _blocks(module: nn.Module, path: str) -> Iterable[Tuple[str, nn.Module]]:
    if _repeated(module):
        for name, child in module.named_children():
            if _has_parameters(child):
                yield _join(path, name), child
        return
    for name, child in module.named_children():
        yield from _blocks(child, _join(path, name))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _by_policy(model: nn.Module, policy: Callable[..., bool]) -> List[Tuple[str, nn.Module]]:
    """FSDP's protocol: policy(module=, recurse=, nonwrapped_numel=)."""
    out: List[Tuple[str, nn.Module]] = []

    def walk(module: nn.Module, path: str) -> int:
        elements = sum(p.numel() for p in module.parameters())
        wrapped = 0
        if not policy(module=module, recurse=True, nonwrapped_numel=elements):
            return 0
        for name, child in module.named_children():
            wrapped += walk(child, _join(path, name))
        left = elements - wrapped
        if path and left > 0 and policy(module=module, recurse=False, nonwrapped_numel=left):
            out.append((path, module))
            return elements
        return wrapped

    walk(model, "")
    return out


def _wrapped(model: nn.Module, wrap: Any) -> List[Tuple[str, nn.Module]]:
    if wrap is None:
        return list(_blocks(model, ""))
    if callable(wrap) and not isinstance(wrap, type):
        return _by_policy(model, wrap)
    wanted = [wrap] if isinstance(wrap, (type, str)) else list(wrap)
    classes = tuple(one for one in wanted if isinstance(one, type))
    names = [one for one in wanted if isinstance(one, str)]
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise errors.InvalidArgument(f"wrap: the model has no module {name!r}", "plan layers")
    out = [(path, module) for path, module in modules.items()
           if path and _has_parameters(module) and (isinstance(module, classes) or path in names)]
    if not out:
        raise errors.InvalidArgument(f"wrap: no module of the model is one of {wanted}",
                                     "plan layers")
    return out


class _Planner:
    def __init__(self, model: nn.Module, wrapped: Sequence[Tuple[str, nn.Module]],
                 trained: Callable[[nn.Parameter], bool]) -> None:
        self.layers: List[LayerPlan] = []
        self.trained = trained
        self.owner: Dict[nn.Parameter, int] = {}
        self.block_of = {path: module for path, module in wrapped}
        self.open: Dict[Tuple[Any, bool], int] = {}  # where more of the same goes
        self.rest_part = 0
        self.last_block: Optional[str] = None
        for name, parameter in model.named_parameters():
            if is_ours(parameter):
                self.place(name, parameter)

    def block(self, name: str) -> Optional[str]:
        path = name
        while "." in path:
            path = path.rpartition(".")[0]
            if path in self.block_of:
                return path
        return None

    def place(self, name: str, parameter: nn.Parameter) -> None:
        trained, block = self.trained(parameter), self.block(name)
        if block != self.last_block:
            self.rest_part += 1
            self.last_block = block
        key = (block if block is not None else self.rest_part, trained)
        number = self.open.get(key)
        if block is None and number is not None and not self.fits(number, name, parameter):
            number = None
        if number is None:
            module = block if block is not None else name.rpartition(".")[0] or name
            number = self.new(module + ("" if trained else ".frozen"), trained)
            self.open[key] = number
        self.layers[number].parameters.append((name, parameter))
        self.owner[parameter] = number

    def fits(self, number: int, name: str, parameter: nn.Parameter) -> bool:
        there = self.layers[number].parameters
        if there[-1][0].rpartition(".")[0] == name.rpartition(".")[0]:
            return True
        return sum(p.numel() for _, p in there) + parameter.numel() <= REST_ELEMENTS

    def new(self, name: str, trained: bool) -> int:
        taken = {layer.name for layer in self.layers}
        unique, count = name, 1
        while unique in taken:
            count += 1
            unique = f"{name}~{count}"
        self.layers.append(LayerPlan(unique, [], trained))
        return len(self.layers) - 1


def plan_layers(model: nn.Module, trained: Callable[[nn.Parameter], bool],
                wrap: Any = None) -> Plan:
    """wrap: None, module classes, module names, or a policy of FSDP. trained(parameter): it has an
    optimizer; what has not gets layers of its own, which are never submitted. InvalidArgument."""
    wrapped = _wrapped(model, wrap)
    planner = _Planner(model, wrapped, trained)
    if not planner.layers:
        raise errors.InvalidArgument("the model has no parameters", "plan layers")
    units = []
    paths = set(planner.block_of)
    for path, module in model.named_modules():
        inside = any(path.startswith(block + ".") for block in _prefixes(path, paths))
        if path in paths:
            held = list(module.parameters())
        elif not inside:
            held = list(module.parameters(recurse=False))
        else:
            continue
        numbers = sorted({planner.owner[p] for p in held if p in planner.owner})
        if numbers:
            units.append((module, numbers))
    return Plan(planner.layers, units)


def _prefixes(path: str, paths: Iterable[str]) -> List[str]:
    out = []
    while "." in path:
        path = path.rpartition(".")[0]
        if path in paths:
            out.append(path)
    return out


def describe_layers(model: nn.Module, wrap: Any = None) -> List[Dict[str, Any]]:
    """The layers that initialize would make, as `zeroctl plan --layers` reads them."""
    plan = plan_layers(model, lambda parameter: parameter.requires_grad, wrap)
    return [{"name": layer.name, "tensors": [{"name": name, "shape": list(parameter.shape)}
                                             for name, parameter in layer.parameters]}
            for layer in plan.layers]
