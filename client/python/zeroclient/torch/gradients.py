# SPDX-License-Identifier: MIT
"""Gradients leave as backward produces them: when the last parameter of a layer has its own, they
are written into the layer's window and submitted.

Only whole layers have a window, and only while they are written: so however small the daemon's
gradient memory is, two layers never wait for each other. What a backward leaves incomplete (layers
of which some parameters were not used) is submitted at its end, zeros for the rest; a layer that
no gradient came to is not submitted, which is the same as zeros. A parameter that is used in
several backwards of a step is submitted several times: the daemons add.
"""
import ctypes
import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch

from .. import errors

from .weights import TORCH_DTYPES, Slot, Weights, memory_view


class Gradients:
    """Hooks on the parameters that are trained."""

    def __init__(self, weights: Weights, trained: List[bool]) -> None:
        self.weights, self.client = weights, weights.client
        self.dtype = TORCH_DTYPES[self.client.info.grad_dtype]
        self._there: List[int] = [0] * len(weights.layers)
        self._has: List[List[bool]] = [[False] * len(slots) for slots in weights.layers]
        self._open: Dict[int, None] = {}  # layers that have some gradients, in that order
        self._windows: Dict[Tuple[int, int], List[torch.Tensor]] = {}
        self._out = ctypes.c_void_p()
        self._hooks: List[Any] = []
        for number, slots in enumerate(weights.layers):
            if trained[number]:
                for slot in slots:
                    self._hook(slot)

    def _hook(self, slot: Slot) -> None:
        weak = weakref.ref(self)

        def arrived(_parameter: torch.Tensor) -> None:
            gradients = weak()
            if gradients is not None:
                gradients._arrived(slot)

        self._hooks.append(slot.parameter.register_post_accumulate_grad_hook(arrived))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._windows.clear()

    def _arrived(self, slot: Slot) -> None:
        has = self._has[slot.layer]
        if has[slot.index]:
            return
        has[slot.index] = True
        self._open[slot.layer] = None
        self._there[slot.layer] += 1
        if self._there[slot.layer] == len(has):
            self._submit(slot.layer)

    def flush(self) -> None:
        """Submits what is incomplete; after a backward."""
        for number in list(self._open):
            self._submit(number)

    def drop(self) -> None:
        """The step was aborted: forgets what has come."""
        for number in list(self._open):
            self._take(number)

    def _take(self, number: int) -> List[Optional[torch.Tensor]]:
        """The layer's gradients, which the parameters let go."""
        out: List[Optional[torch.Tensor]] = []
        with torch._C.DisableTorchFunctionSubclass():
            for slot in self.weights.layers[number]:
                out.append(slot.parameter.grad)
                slot.parameter.grad = None
        self._has[number] = [False] * len(out)
        self._there[number] = 0
        self._open.pop(number, None)
        return out

    def _submit(self, number: int) -> None:
        gradients = self._take(number)
        if self.weights.aborted is not None:
            return
        try:
            places = self._window(number)
            self._write(number, places, gradients)
            self.client.submit(number)
        except errors.StepAborted as error:
            self.weights.aborted = error
        self.weights.release(number)

    def _write(self, number: int, places: List[torch.Tensor],
               gradients: List[Optional[torch.Tensor]]) -> None:
        to, given = [], []
        for place, gradient, slot in zip(places, gradients, self.weights.layers[number]):
            if gradient is None:
                place.zero_()
            elif gradient.layout != torch.strided:
                raise errors.Unsupported(f"the gradient of {slot.name} is sparse: make its "
                                         "embedding with sparse=False", "submit gradients")
            else:
                to.append(place)
                given.append(gradient)
        with torch.no_grad():
            torch._foreach_copy_(to, given)

    def _window(self, number: int) -> List[torch.Tensor]:
        self.client._call("zero_window", number, self._out)
        key = (number, self._out.value or 0)
        places = self._windows.get(key)
        if places is None:
            if len(self._windows) > 4 * len(self.weights.layers):
                self._windows.clear()
            memory = self.client.window_array(number, key[1])
            places = [memory_view(memory, self.dtype, slot)
                      for slot in self.weights.layers[number]]
            self._windows[key] = places
        return places
