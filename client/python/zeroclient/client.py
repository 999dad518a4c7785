# SPDX-License-Identifier: MIT
"""A trainer's side of zerod: zeroclient.h in Python, without copies.

    with Client() as client:
        client.register([("layer", [("weight", (3, 5)), ("bias", (5,))])], config)
        if not client.info.filled:
            client.fill(0, 0, values)        # any buffer of fp32
            ...
            client.fill_end()
        while client.info.step < steps:
            weights = client.gather(0)       # a read-only memoryview of the layer
            gradients = client.window(0)     # a writable one, same places
            ...
            client.submit(0)
            client.step()

Windows and gathered layers are memoryviews of the layer's flat vector: format "f" for fp32, "H"
(the raw 16 bits) for bf16 and fp16; numpy.asarray and torch.frombuffer of one copy nothing. They
keep the client attached; close() refuses while one is in use.
Threads: gather, prefetch, release, window, submit from any; all else one at a time.
Ctrl-C ends every wait.
"""
import ctypes
import json
import math
import os
import weakref
from dataclasses import dataclass
from typing import Any, Dict, Generator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _lib, errors
from .discover import find_socket

DTYPES = ("fp32", "bf16", "fp16")
OUTCOMES = ("applied", "overflow", "nonfinite")
STATES = ("master", "moment1", "moment2", "max_moment2", "param")
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_FORMAT: Dict[str, Any] = {"fp32": "f", "bf16": "H", "fp16": "H"}

library = _lib.load()


@dataclass(frozen=True)
class Info:
    """zero_client_info: what is known after attach, register and each step."""
    rank: int
    world: int
    stage: int
    param_dtype: str
    grad_dtype: str
    epoch: int
    step: int
    updates: int
    filled: bool
    lr: float
    loss_scale: float
    train_batch: int
    micro_batch: int
    accumulation: int
    layer_count: int
    blob_bytes: int


@dataclass(frozen=True)
class Tensor:
    """A tensor and its place, in elements, in the layer's flat vector."""
    name: str
    shape: Tuple[int, ...]
    offset: int
    count: int


@dataclass(frozen=True)
class Layer:
    """A layer; elements: of its flat vector."""
    name: str
    tensors: Tuple[Tensor, ...]
    elements: int


@dataclass(frozen=True)
class StepResult:
    """zero_step_result; outcome is one of OUTCOMES, scalars the means over the ranks."""
    step: int
    updates: int
    outcome: str
    skipped_in_row: int
    grad_norm: float
    lr: float
    loss_scale: float
    scalars: Mapping[str, float]


def config_text(config: Union[None, str, bytes, os.PathLike, Mapping[str, Any]]) -> bytes:
    """The JSON of a config that is a mapping, JSON text, a path, or None: what ZERO_CONFIG names,
    which zerorun sets."""
    if config is None:
        config = os.environ.get("ZERO_CONFIG") or None
        if config is None:
            raise errors.ConfigError("no config is given: pass one, or start the trainer with "
                                     "zerorun --config, which sets ZERO_CONFIG")
    if isinstance(config, Mapping):
        return json.dumps(config).encode()
    if isinstance(config, bytes):
        return config
    if isinstance(config, str) and config.lstrip().startswith("{"):
        return config.encode()
    with open(config, "rb") as file:
        return file.read()


class _Session:
    """Detaches when the client is closed and nobody has one of its buffers."""

    def __init__(self) -> None:
        self.pointer = ctypes.c_void_p()
        self.pid = os.getpid()
        self.wish: Optional[BaseException] = None
        looks = self._looks()
        next(looks)
        # The generator stands inside its try: a signal's handler, which runs as soon as it is
        # resumed, cannot raise outside of it, as it could on the way into a function.
        self.interrupted = _lib.INTERRUPTED(looks.send)
        self.buffers: Dict[int, weakref.ref] = {}  # those in use; arrays cannot be hashed

    def _looks(self) -> Generator[bool, None, None]:
        """Resumed while a call waits: the handler of a signal that came meanwhile runs here."""
        while True:
            try:
                while True:
                    yield self.wish is not None
            except BaseException as raised:  # KeyboardInterrupt, or what a handler raises
                if isinstance(raised, GeneratorExit):
                    raise
                self.wish = raised

    def check(self, status: _lib.Status) -> None:
        if status.code == 0:
            return
        wish, self.wish = self.wish, None
        if wish is not None:
            raise wish
        text = library.zero_error_text(self.pointer) or b""
        kind = errors.BY_CODE.get(status.code, errors.ZeroError)
        raise kind(text.decode(errors="replace"), (status.doing or b"").decode())

    def attach(self, role: int, socket: Optional[str], deadline: float) -> None:
        detail = _lib.Detail()
        path = find_socket(socket).encode()
        options = _lib.AttachOptions(path, role, min(max(int(deadline * 1000), 1), 2**32 - 1),
                                     self.interrupted, None)
        pointer = ctypes.c_void_p()
        status = library.zero_attach(options, pointer, detail)
        if status.code != 0:
            wish, self.wish = self.wish, None
            if wish is not None:
                raise wish
            kind = errors.BY_CODE.get(status.code, errors.ZeroError)
            raise kind(detail.text.decode(errors="replace"), (status.doing or b"").decode())
        self.pointer = pointer

    def detach(self) -> None:
        pointer, self.pointer = self.pointer, ctypes.c_void_p()
        if pointer and self.pid == os.getpid():  # what a forked child has is the parent's
            library.zero_detach(pointer)

    def __del__(self) -> None:
        self.detach()


_kinds: Dict[int, type] = {}


def _exporter(session: _Session, address: int, size: int) -> Any:
    """A ctypes array over memory of the session, which it keeps."""
    kind: Any = _kinds.get(size)
    if kind is None:
        kind = type("Window", (ctypes.Array,), {"_type_": ctypes.c_ubyte, "_length_": size})
        _kinds[size] = kind
    out = kind.from_address(address)
    out.session = session
    key, buffers = id(out), session.buffers
    buffers[key] = weakref.ref(out, lambda _gone: buffers.pop(key, None))
    return out


class _Attached:
    """What trainers and observers share."""

    _role = 0

    def __init__(self, socket: Optional[str] = None, *, deadline: float = 60.0) -> None:
        """Attaches; socket: path, else see discover.find_socket. deadline: seconds until the
        daemon is there and its last trainer is gone."""
        self._session = _Session()
        self._session.attach(self._role, socket, deadline)
        self.layers: Tuple[Layer, ...] = ()

    def __enter__(self) -> "_Attached":
        return self

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        if kind is None or not len(self._session.buffers):
            self.close()

    def close(self) -> None:
        """Leaves. InvalidState while a memoryview or array of a layer is in use."""
        left = len(self._session.buffers)
        if left and self._session.pointer:
            raise errors.InvalidState(f"{left} windows or gathered layers are in use: let go of "
                                      "the arrays that view them first", "close")
        self._session.detach()

    def _call(self, name: str, *arguments: Any) -> None:
        session = self._session
        if not session.pointer:
            raise errors.InvalidState("this client is closed", "call daemon")
        if session.pid != os.getpid():
            raise errors.InvalidState("this is a forked child: only the process that attached may "
                                      "use a client", "call daemon")
        session.check(getattr(library, name)(session.pointer, *arguments))

    @property
    def info(self) -> Info:
        if not self._session.pointer:
            raise errors.InvalidState("this client is closed", "look at client")
        raw = library.zero_client_info(self._session.pointer).contents
        values = {name: getattr(raw, name) for name, _ in raw._fields_}
        values["param_dtype"] = DTYPES[raw.param_dtype]
        values["grad_dtype"] = DTYPES[raw.grad_dtype]
        return Info(**values)

    def _describe(self) -> Tuple[Layer, ...]:
        out: List[Layer] = []
        for number in range(self.info.layer_count):
            layer, tensor = _lib.LayerInfo(), _lib.TensorInfo()
            self._call("zero_layer_describe", number, layer)
            tensors = []
            for index in range(layer.tensor_count):
                self._call("zero_tensor_describe", number, index, tensor)
                tensors.append(Tensor(tensor.name.decode(), tuple(tensor.shape[:tensor.dims]),
                                      tensor.offset, tensor.count))
            out.append(Layer(layer.name.decode(), tuple(tensors), layer.elements))
        return tuple(out)

    def _view(self, layer: int, address: Optional[int], dtype: str) -> memoryview:
        size = self.layers[layer].elements * _BYTES[dtype]
        whole = memoryview(_exporter(self._session, address or 0, size)).cast("B")
        return whole.cast(_FORMAT[dtype])

    def gather(self, layer: int) -> memoryview:
        """The layer's flat vector in the parameter dtype, read-only; a trainer's is stable until
        step(), an observer's until close_version()."""
        out = ctypes.c_void_p()
        self._call("zero_gather", layer, out)
        return self._view(layer, out.value, self.info.param_dtype).toreadonly()

    def gather_array(self, layer: int) -> Any:
        """gather, as the writable-looking ctypes array that torch.frombuffer takes: writing to it
        kills the process."""
        out = ctypes.c_void_p()
        self._call("zero_gather", layer, out)
        size = self.layers[layer].elements * _BYTES[self.info.param_dtype]
        return _exporter(self._session, out.value or 0, size)

    def read(self, state: str, layer: int, tensor: int, offset: int = 0,
             count: Optional[int] = None) -> "memoryview[float]":
        """count elements of a tensor's state (STATES) as fp32, of the last committed step."""
        if state not in STATES:
            raise errors.InvalidArgument(f"state {state!r} is none of {', '.join(STATES)}", "read")
        if count is None:
            count = self.layers[layer].tensors[tensor].count - offset
        values = (ctypes.c_float * max(count, 0))()
        self._call("zero_read", STATES.index(state), _lib.Span(layer, tensor, offset, count),
                   ctypes.addressof(values))
        return memoryview(values).cast("B").cast("f")


class Client(_Attached):
    """A trainer."""

    def register(self, layers: Optional[Sequence[Tuple[str, Sequence[Tuple]]]] = None,
                 config: Any = None) -> None:
        """layers: (name, [(tensor name, shape[, lr_scale[, weight_decay]])]), in order; None:
        whatever is registered. config: see config_text. Returns when every rank has registered
        the same. Mismatch, Conflict, ConfigError, Unsupported, NoMemory."""
        if layers is None:
            self._call("zero_register", None)
        else:
            text = config_text(config)
            self._call("zero_register", _model(layers, text))
        self.layers = self._describe()

    def fill_from_rank_0(self) -> None:
        """Rank 0 fills, the other ranks only call fill_end; before the first fill."""
        self._call("zero_fill_from", 1)

    def fill(self, layer: int, tensor: int, values: Any, offset: int = 0) -> None:
        """Values, a contiguous buffer of fp32, of a tensor from element `offset` on. StepAborted:
        a daemon died; fill everything anew if info.filled is still false."""
        view = memoryview(values)
        if view.format not in ("f", "<f") or not view.c_contiguous:
            raise errors.InvalidArgument(
                f"initial values are of format {view.format!r}: give contiguous fp32", "fill")
        flat = view.cast("B")
        whole = (ctypes.c_ubyte * flat.nbytes)
        keep = whole.from_buffer_copy(flat) if flat.readonly else whole.from_buffer(flat)
        self._call("zero_fill", _lib.Span(layer, tensor, offset, flat.nbytes // 4),
                   ctypes.addressof(keep))

    def fill_end(self) -> None:
        """Returns when every rank has its values."""
        self._call("zero_fill_end")

    def blob(self) -> bytes:
        """This rank's blob of the last committed step."""
        size = ctypes.c_size_t()
        room = ctypes.create_string_buffer(_lib.MAX_BLOB)
        self._call("zero_blob", ctypes.addressof(room), _lib.MAX_BLOB, size)
        return room.raw[:size.value]

    def prefetch(self, layer: int) -> None:
        """A hint that the layer will be gathered soon."""
        self._call("zero_prefetch", layer)

    def release(self, layer: int) -> None:
        """The layer is not needed any more."""
        self._call("zero_release", layer)

    def window(self, layer: int) -> memoryview:
        """Where to write the layer's gradients: all elements of all tensors. Waits while all
        windows are in use. StepAborted: begin the step anew."""
        out = ctypes.c_void_p()
        self._call("zero_window", layer, out)
        return self._view(layer, out.value, self.info.grad_dtype)

    def window_array(self, layer: int, address: int) -> Any:
        """The window at an address that zero_window gave, as a ctypes array."""
        size = self.layers[layer].elements * _BYTES[self.info.grad_dtype]
        return _exporter(self._session, address, size)

    def submit(self, layer: int) -> None:
        """Hands the window over: do not touch it again."""
        self._call("zero_submit", layer)

    def step(self, lr: Optional[float] = None, blob: Optional[bytes] = None,
             scalars: Optional[Mapping[str, float]] = None) -> StepResult:
        """One update over everything submitted since the last. lr None: the config's; blob comes
        back from blob() when a trainer attaches; scalars: at most 8, the same names on every
        rank. StepAborted: repeat the step. DeadlinePassed, Interrupted: call it again."""
        args = _lib.StepArgs(math.nan if lr is None else lr)
        given = dict(scalars or {})
        names = list(given)
        if len(names) > _lib.MAX_SCALARS:
            raise errors.TooLarge(f"{len(names)} scalars, at most {_lib.MAX_SCALARS}", "step")
        values = (_lib.Scalar * max(len(names), 1))()
        for place, name in enumerate(names):
            if len(name.encode()) > _lib.MAX_SCALAR_NAME:
                raise errors.InvalidArgument(f"the name of scalar {name!r} has over "
                                             f"{_lib.MAX_SCALAR_NAME} bytes", "step")
            values[place].name, values[place].value = name.encode(), given[name]
        args.scalars, args.scalar_count = values, len(names)
        if blob is not None:
            keep = ctypes.create_string_buffer(blob, max(len(blob), 1))
            args.blob, args.blob_bytes = ctypes.addressof(keep), len(blob)
        out = _lib.StepResult()
        self._call("zero_step", args, out)
        return StepResult(out.step, out.updates, OUTCOMES[out.outcome], out.skipped_in_row,
                          out.grad_norm, out.lr, out.loss_scale,
                          dict(zip(names, out.scalars)))


class Observer(_Attached):
    """Reads versions: all parameters as they were after one step, while training goes on."""

    _role = 1

    def __init__(self, socket: Optional[str] = None, *, deadline: float = 60.0) -> None:
        super().__init__(socket, deadline=deadline)
        self._call("zero_register", None)
        self.layers = self._describe()

    def versions(self) -> List[int]:
        """The steps of the kept versions, ascending."""
        steps, count = (ctypes.c_uint64 * 64)(), ctypes.c_size_t()
        self._call("zero_versions", steps, 64, count)
        return list(steps[:count.value])

    def open_version(self, step: Optional[int] = None) -> int:
        """Maps the version of a step, None: of the last committed one; returns its step."""
        out = ctypes.c_uint64()
        self._call("zero_version_open", _lib.LATEST if step is None else step, out)
        return out.value

    def close_version(self) -> None:
        """InvalidState while an array views it: its memory would be gone."""
        if len(self._session.buffers):
            raise errors.InvalidState(f"{len(self._session.buffers)} gathered layers are in use",
                                      "close version")
        self._call("zero_version_close")


def _model(layers: Sequence[Tuple[str, Sequence[Tuple]]], config: bytes) -> _lib.ModelSpec:
    specs = (_lib.LayerSpec * max(len(layers), 1))()
    for place, (name, tensors) in enumerate(layers):
        own = (_lib.TensorSpec * max(len(tensors), 1))()
        for index, (tensor, shape, *scales) in enumerate(tensors):
            sizes = (ctypes.c_uint64 * max(len(shape), 1))(*shape)
            lr_scale = scales[0] if scales else 1.0
            decay = scales[1] if len(scales) > 1 else math.nan
            own[index] = _lib.TensorSpec(tensor.encode(), sizes, len(shape), lr_scale, decay)
        specs[place] = _lib.LayerSpec(name.encode(), own, len(tensors))
    return _lib.ModelSpec(specs, len(layers), config, len(config))
