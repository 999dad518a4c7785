# SPDX-License-Identifier: MIT
"""What a step's blob holds: a small tree of plain values, arrays and bytes, as JSON and the bytes
behind it. Nothing is pickled, so nothing is executed when a blob is read.

    4 bytes  length of the JSON, little-endian
    JSON     {"$bytes": [offset, length]}, {"$array": [dtype, shape, offset]},
             {"$tensor": [dtype, shape, offset]}, {"$tuple": [...]}, {"$dict": [[key, value], ...]}
    bytes
"""
import json
import random
import sys
from typing import Any, Dict, List

import torch

from .. import errors

_DTYPES = {str(dtype)[6:]: dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool)}


class _Encoder:
    def __init__(self) -> None:
        self.tail = bytearray()

    def put(self, data: bytes) -> int:
        place = len(self.tail)
        self.tail += data
        return place

    def encode(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, (int, float)):
            return int(value) if isinstance(value, int) else float(value)
        if isinstance(value, (bytes, bytearray)):
            return {"$bytes": [self.put(bytes(value)), len(value)]}
        if isinstance(value, list):
            return [self.encode(one, f"{path}[{i}]") for i, one in enumerate(value)]
        if isinstance(value, tuple):
            return {"$tuple": [self.encode(one, f"{path}[{i}]") for i, one in enumerate(value)]}
        if isinstance(value, dict):
            return self.encode_dict(value, path)
        if isinstance(value, torch.Tensor):
            return self.encode_tensor(value, path)
        if type(value).__module__ == "numpy":
            return self.encode_numpy(value, path)
        raise errors.Unsupported(
            f"{path} is a {type(value).__module__}.{type(value).__qualname__}: a step's blob holds "
            "numbers, strings, bytes, lists, tuples, dicts, tensors and NumPy arrays", "write blob")

    def encode_dict(self, value: Dict, path: str) -> Any:
        plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
        pairs = [[self.encode(key, f"{path} key"), self.encode(one, f"{path}[{key!r}]")]
                 for key, one in value.items()]
        return dict(pairs) if plain else {"$dict": pairs}

    def encode_tensor(self, value: torch.Tensor, path: str) -> Any:
        name = str(value.dtype)[6:]
        if name not in _DTYPES or value.layout != torch.strided:
            raise errors.Unsupported(f"{path} is a tensor of {value.dtype}, {value.layout}",
                                     "write blob")
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return {"$tensor": [name, list(value.shape), self.put(flat.numpy().tobytes())]}

    def encode_numpy(self, value: Any, path: str) -> Any:
        if not hasattr(value, "shape") or value.dtype.hasobject or value.dtype.names:
            raise errors.Unsupported(f"{path} is NumPy's {type(value).__name__} of {value.dtype}",
                                     "write blob")
        if value.shape == ():
            return self.encode(value.item(), path)
        return {"$array": [value.dtype.str, list(value.shape), self.put(value.tobytes())]}


def encode(value: Any) -> bytes:
    """Unsupported names what cannot be in a blob, and where it is in the tree."""
    encoder = _Encoder()
    head = json.dumps(encoder.encode(value, "state"), separators=(",", ":")).encode()
    return len(head).to_bytes(4, "little") + head + bytes(encoder.tail)


def decode(blob: bytes) -> Any:
    """The tree that encode was given; Corrupt if this is none."""
    try:
        size = int.from_bytes(blob[:4], "little")
        head, tail = json.loads(blob[4:4 + size].decode()), blob[4 + size:]
        return _decode(head, tail)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise errors.Corrupt(f"a blob of {len(blob)} bytes is not a trainer's of this package: "
                             f"{error}", "read blob") from error


def _decode(value: Any, tail: bytes) -> Any:
    if isinstance(value, list):
        return [_decode(one, tail) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (kind, what), = value.items()
        if kind in _DECODERS:
            return _DECODERS[kind](what, tail)
    return {key: _decode(one, tail) for key, one in value.items()}


def _slice(tail: bytes, offset: int, size: int) -> bytes:
    if offset < 0 or size < 0 or offset + size > len(tail):
        raise ValueError("it is cut short")
    return tail[offset:offset + size]


def _count(shape: List[int]) -> int:
    out = 1
    for size in shape:
        out *= size
    return out


def _tensor(what: List, tail: bytes) -> torch.Tensor:
    name, shape, offset = what
    dtype = _DTYPES[name]
    out = torch.empty(shape, dtype=dtype)
    data = _slice(tail, offset, _count(shape) * out.element_size())
    if data:
        out.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return out


def _array(what: List, tail: bytes) -> Any:
    import numpy
    dtype, shape, offset = numpy.dtype(what[0]), what[1], what[2]
    data = _slice(tail, offset, _count(shape) * dtype.itemsize)
    return numpy.frombuffer(data, dtype=dtype).reshape(shape).copy()


_DECODERS = {
    "$bytes": lambda what, tail: _slice(tail, *what),
    "$tuple": lambda what, tail: tuple(_decode(one, tail) for one in what),
    "$dict": lambda what, tail: {_decode(k, tail): _decode(v, tail) for k, v in what},
    "$tensor": _tensor,
    "$array": _array,
}


def random_state() -> Dict[str, Any]:
    """Of torch (CPU), NumPy if it is loaded, and random."""
    version, words, gauss = random.getstate()
    out: Dict[str, Any] = {"torch": torch.get_rng_state(), "python": [
        version, b"".join(word.to_bytes(4, "little") for word in words), gauss]}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        out["numpy"] = [name, keys, *rest]
    return out


def set_random_state(state: Dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(int.from_bytes(words[i:i + 4], "little")
                                    for i in range(0, len(words), 4)), gauss))
    if "numpy" in state:
        import numpy
        numpy.random.set_state(tuple(state["numpy"]))
