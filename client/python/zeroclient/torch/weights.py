# SPDX-License-Identifier: MIT
"""A module's parameters as views of gathered layers, and hooks that gather a layer before a forward
or backward that needs it and release it behind, and prefetch what was needed next the last time.
"""
import ctypes
import weakref
from typing import Any, Dict, Iterator, List, Optional

import torch
from torch import nn

from .. import errors
from ..client import Client
from . import guard
from .layers import LayerPlan, Plan

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Slot:
    """A parameter and its place."""

    __slots__ = ("name", "parameter", "layer", "index", "offset", "count", "view")

    def __init__(self, name: str, parameter: nn.Parameter, layer: int, index: int) -> None:
        self.name, self.parameter, self.layer, self.index = name, parameter, layer, index
        self.offset = self.count = 0
        self.view: torch.Tensor = torch.empty(0)


def memory_view(memory: Any, dtype: torch.dtype, slot: Slot) -> torch.Tensor:
    """A tensor over the slot's part of a layer's memory, with a storage of its own."""
    shape = slot.parameter.shape
    flat = torch.frombuffer(memory, dtype=dtype, count=slot.count,
                            offset=slot.offset * dtype.itemsize)
    return flat.view(shape)


class Weights:
    """The model's parameters in zerod's memory. Thread: hooks run where forward and backward do."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self.client = client
        self.dtype = TORCH_DTYPES[client.info.param_dtype]
        self.layers: List[List[Slot]] = []
        self.slots: Dict[nn.Parameter, Slot] = {}
        for number, layer in enumerate(plan.layers):
            self._place(number, layer)
        self.aborted: Optional[errors.StepAborted] = None
        self._held = [False] * len(self.layers)
        self._order: List[int] = []  # of gathers in the last step that was observed
        self._seen: List[int] = []
        self._place_in_order = 0
        self._hooks: List[Any] = []
        for module, numbers in plan.units:
            self._hook(module, numbers)

    def _place(self, number: int, layer: LayerPlan) -> None:
        slots = []
        for index, (name, parameter) in enumerate(layer.parameters):
            slot = Slot(name, parameter, number, index)
            tensor = self.client.layers[number].tensors[index]
            slot.offset, slot.count = tensor.offset, tensor.count
            slots.append(slot)
            self.slots[parameter] = slot
        self.layers.append(slots)

    # ---- filling ----

    def fill(self, piece: int = 1 << 22) -> None:
        """Rank 0's values become everybody's. StepAborted: fill anew."""
        if self.client.info.rank == 0:
            for slot in self.slots.values():
                flat = slot.parameter.detach().reshape(-1)
                for first in range(0, slot.count, piece):
                    part = flat[first:first + piece].to("cpu", torch.float32).contiguous()
                    self.client.fill(slot.layer, slot.index, part.numpy(), first)
        self.client.fill_end()

    # ---- views ----

    def bind(self) -> None:
        """Every parameter becomes a view; what memory it had is freed."""
        for number, slots in enumerate(self.layers):
            memory = self.client.gather_array(number)
            for slot in slots:
                slot.view = memory_view(memory, self.dtype, slot)
                guard.bind(slot.parameter, slot.view)
            self.client.release(number)

    def unbind(self) -> None:
        """Parameters become ordinary ones again, with copies of the values."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for slots in self.layers:
            for slot in slots:
                if isinstance(slot.parameter, guard.ReadOnlyParameter):
                    guard.unbind(slot.parameter, slot.view.clone())
                guard.forget(slot.view)
                slot.view = torch.empty(0)

    def touched(self) -> None:
        """The weights have changed: a backward through what was computed before is an error."""
        for slots in self.layers:
            for slot in slots:
                torch.autograd.graph.increment_version(slot.view)

    # ---- gather and release ----

    def gather(self, number: int) -> None:
        if self._held[number]:
            return
        self._held[number] = True
        self._seen.append(number)
        self._call("zero_gather", number, _OUT)
        order, place = self._order, self._place_in_order
        if place < len(order) and order[place] == number:
            self._place_in_order = place + 1
            if place + 1 < len(order):
                self._call("zero_prefetch", order[place + 1])

    def release(self, number: int) -> None:
        if self._held[number]:
            self._held[number] = False
            self._call("zero_release", number)

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            self.client._call(name, *arguments)
        except errors.StepAborted as error:
            self.aborted = error  # told at engine.step(): the weights stay as they are

    def step_ended(self) -> None:
        """The next step's gathers are expected in the order of this one's."""
        for number in range(len(self._held)):
            self.release(number)
        self._order, self._seen, self._place_in_order = self._seen, [], 0

    def _hook(self, module: nn.Module, numbers: List[int]) -> None:
        weak = weakref.ref(self)

        def gather(*_ignored: Any) -> None:
            weights = weak()
            if weights is not None:
                for number in numbers:
                    weights.gather(number)

        def before(_module: nn.Module, _inputs: Any) -> None:
            gather()

        def behind(_module: nn.Module, _inputs: Any, output: Any) -> None:
            weights = weak()
            if weights is None:
                return
            for number in numbers:
                weights.release(number)
            if torch.is_grad_enabled():
                for tensor in _tensors(output):
                    if tensor.requires_grad:
                        tensor.register_hook(gather)

        self._hooks.append(module.register_forward_pre_hook(before))
        self._hooks.append(module.register_forward_hook(behind))


_OUT = ctypes.c_void_p()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)
