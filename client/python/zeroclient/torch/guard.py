# SPDX-License-Identifier: MIT
"""Weights that Python can read and not write.

A parameter's memory is mapped read-only: a write to it would kill the process. So parameters, and
whatever views their memory, are of a class that sees every call of torch which takes them, and
raises WeightsAreReadOnly in place of one that writes. Reading costs a few microseconds a call.
Not seen: writes by other languages through a raw pointer.
"""
import bisect
from typing import Any, Callable, Dict, Iterable, List, Tuple

import torch

from .. import errors

_NO_WRITE = {"requires_grad_", "retain_grad", "rename_"}
_DUNDER_WRITES = {"__setitem__", "__delitem__", "__iadd__", "__isub__", "__imul__", "__idiv__",
                  "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__", "__iand__", "__ior__",
                  "__ixor__", "__ilshift__", "__irshift__", "__imatmul__"}
_NO_VIEW = (bool, int, float, str, torch.Size, torch.dtype, type(None))


class WeightsAreReadOnly(errors.InvalidState, RuntimeError):
    """Something was about to write to weights, which are zerod's."""

    def __init__(self, call: str) -> None:
        hint = ("the model was moved or cast after initialize: do it before, and choose the dtype "
                "by the config" if call == "data" else
                "zerod's daemons update the weights in engine.step(); to change them by hand use "
                "`with zeroclient.torch.gathered(parameters, modifier_rank=0):` or "
                "engine.load_state_dict()")
        super().__init__(f"the weights are read-only ({call}): {hint}", "write weights")


_starts: List[int] = []  # of the memory that is mapped read-only, ascending
_ends: List[int] = []


def _protect(start: int, size: int) -> None:
    place = bisect.bisect_left(_starts, start)
    if place < len(_starts) and _starts[place] == start:
        _ends[place] = max(_ends[place], start + size)
    else:
        _starts.insert(place, start)
        _ends.insert(place, start + size)


def _unprotect(start: int) -> None:
    place = bisect.bisect_left(_starts, start)
    if place < len(_starts) and _starts[place] == start:
        del _starts[place], _ends[place]


def _is_protected(address: int) -> bool:
    place = bisect.bisect_right(_starts, address) - 1
    return place >= 0 and address < _ends[place]


def _targets(args: Tuple, kwargs: Dict) -> Iterable[Any]:
    first = args[0] if args else next(iter(kwargs.values()), None)
    return first if isinstance(first, (list, tuple)) else (first,)


def _refuse_guarded(name: str, what: Iterable[Any]) -> None:
    if any(isinstance(one, (ReadOnlyParameter, ReadOnlyTensor)) for one in what):
        raise WeightsAreReadOnly(name)


def _check(func: Callable, args: Tuple, kwargs: Dict) -> None:
    name = getattr(func, "__name__", "")
    if name.endswith("_") and not name.startswith("__") and name not in _NO_WRITE \
            or name in _DUNDER_WRITES:
        _refuse_guarded(name, _targets(args, kwargs))
        if name.startswith("_fused_") or name.startswith("_foreach_"):
            for group in args:
                if isinstance(group, (list, tuple)):
                    _refuse_guarded(name, group[:1])
    if not kwargs:
        return
    out = kwargs.get("out")
    if out is not None:
        _refuse_guarded(name + " out=", out if isinstance(out, (list, tuple)) else (out,))
    if kwargs.get("inplace"):
        _refuse_guarded(name + " inplace=True", args[:1])
    if kwargs.get("max_norm") is not None and name in ("embedding", "embedding_bag"):
        _refuse_guarded(name + " max_norm=", args)


def _set_data(self: torch.Tensor, value: torch.Tensor) -> None:
    """p.data = value: allowed when it changes nothing, as in model.to("cpu")."""
    with torch._C.DisableTorchFunctionSubclass():
        same = (value.data_ptr() == self.data_ptr() and value.dtype == self.dtype
                and value.shape == self.shape and value.device == self.device)
    if not same:
        raise WeightsAreReadOnly("data")


_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def _guard(out: Any) -> Any:
    """out, with what views protected memory of the class that guards it."""
    if isinstance(out, torch.Tensor):
        if isinstance(out, (ReadOnlyParameter, ReadOnlyTensor)) or out.layout != torch.strided:
            return out
        try:
            if not _is_protected(out.data_ptr()):
                return out
        except RuntimeError:  # a tensor without memory: meta, fake, of functorch
            return out
        return out.as_subclass(ReadOnlyTensor)
    if isinstance(out, _NO_VIEW):
        return out
    if type(out) in (tuple, list):
        return type(out)(_guard(one) for one in out)
    if hasattr(out, "__array_interface__"):
        if _is_protected(out.__array_interface__["data"][0]):
            out.flags.writeable = False
    return out


def _torch_function(_cls: Any, func: Callable, _types: Any, args: Tuple = (),
                    kwargs: Any = None) -> Any:
    kwargs = kwargs or {}
    if func == _SET_DATA:
        return _set_data(*args)
    _check(func, args, kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        return _guard(func(*args, **kwargs))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().as_subclass(torch.Tensor)


class ReadOnlyTensor(torch.Tensor):
    """A view of weights. Pickles and deep copies are plain tensors of their own memory."""

    __torch_function__ = classmethod(_torch_function)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Dict) -> torch.Tensor:
        out = _plain(self).clone()
        memo[id(self)] = out
        return out


class ReadOnlyParameter(torch.nn.Parameter):
    """A parameter whose memory is zerod's. Pickles and deep copies are plain parameters."""

    __torch_function__ = classmethod(_torch_function)

    def __reduce_ex__(self, protocol: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return torch.nn.Parameter(_plain(self), self.requires_grad).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Dict) -> torch.nn.Parameter:
        with torch._C.DisableTorchFunctionSubclass():
            out = torch.nn.Parameter(_plain(self).clone(), self.requires_grad)
        memo[id(self)] = out
        return out


def bind(parameter: torch.nn.Parameter, view: torch.Tensor) -> None:
    """Makes the parameter a guarded view; the memory that it had is let go."""
    with torch._C.DisableTorchFunctionSubclass():
        parameter.data = view
        parameter.__class__ = ReadOnlyParameter
    _protect(view.data_ptr(), view.numel() * view.element_size())


def unbind(parameter: torch.nn.Parameter, values: torch.Tensor) -> None:
    """Makes it an ordinary parameter with memory of its own."""
    with torch._C.DisableTorchFunctionSubclass():
        parameter.__class__ = torch.nn.Parameter
        parameter.data = values


def forget(view: torch.Tensor) -> None:
    """The memory of a view that was bound will not be mapped any more."""
    _unprotect(view.data_ptr())
