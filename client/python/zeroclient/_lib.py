# SPDX-License-Identifier: MIT
"""Binds libzeroclient by ctypes: finds it, checks that it is the one this package was written for,
and says what its structs look like (tests/integration/abi.c prints the same of the headers).

Every call releases the GIL. A status is read at once, in the thread that made the call.
"""
import ctypes
import ctypes.util
import os
import pathlib
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int,
                    c_size_t, c_uint32, c_uint64, c_void_p)
from typing import List

ABI = 1
SONAME = "libzeroclient.so.0"
DETAIL_BYTES = 512
MAX_SCALARS = 8
MAX_SCALAR_NAME = 31
MAX_BLOB = 65536
LATEST = 2**64 - 1


class Status(Structure):
    _fields_ = [("code", c_int), ("doing", c_char_p)]


class Detail(Structure):
    _fields_ = [("text", c_char * DETAIL_BYTES)]


class TensorSpec(Structure):
    _fields_ = [("name", c_char_p), ("shape", POINTER(c_uint64)), ("dims", c_uint32),
                ("lr_scale", c_double), ("weight_decay", c_double)]


class LayerSpec(Structure):
    _fields_ = [("name", c_char_p), ("tensors", POINTER(TensorSpec)), ("tensor_count", c_size_t)]


class ModelSpec(Structure):
    _fields_ = [("layers", POINTER(LayerSpec)), ("layer_count", c_size_t), ("config", c_char_p),
                ("config_bytes", c_size_t)]


class LayerInfo(Structure):
    _fields_ = [("name", c_char_p), ("tensor_count", c_uint32), ("elements", c_uint64)]


class TensorInfo(Structure):
    _fields_ = [("name", c_char_p), ("shape", POINTER(c_uint64)), ("dims", c_uint32),
                ("offset", c_uint64), ("count", c_uint64)]


INTERRUPTED = CFUNCTYPE(c_bool, c_void_p)


class AttachOptions(Structure):
    _fields_ = [("socket", c_char_p), ("role", c_int), ("deadline_ms", c_uint32),
                ("interrupted", INTERRUPTED), ("context", c_void_p)]


class ClientInfo(Structure):
    _fields_ = [("rank", c_uint32), ("world", c_uint32), ("stage", c_uint32),
                ("param_dtype", c_int), ("grad_dtype", c_int), ("epoch", c_uint64),
                ("step", c_uint64), ("updates", c_uint64), ("filled", c_bool), ("lr", c_double),
                ("loss_scale", c_double), ("train_batch", c_uint64), ("micro_batch", c_uint64),
                ("accumulation", c_uint64), ("layer_count", c_uint32), ("blob_bytes", c_size_t)]


class Span(Structure):
    _fields_ = [("layer", c_uint32), ("tensor", c_uint32), ("offset", c_uint64),
                ("count", c_uint64)]


class Scalar(Structure):
    _fields_ = [("name", c_char * (MAX_SCALAR_NAME + 1)), ("value", c_double)]


class StepArgs(Structure):
    _fields_ = [("lr", c_double), ("blob", c_void_p), ("blob_bytes", c_size_t),
                ("scalars", POINTER(Scalar)), ("scalar_count", c_size_t)]


class StepResult(Structure):
    _fields_ = [("step", c_uint64), ("updates", c_uint64), ("outcome", c_int),
                ("skipped_in_row", c_uint32), ("grad_norm", c_double), ("lr", c_double),
                ("loss_scale", c_double), ("scalars", c_double * MAX_SCALARS)]


_PROTOTYPES = {
    "zero_abi": (c_uint32,),
    "zero_version": (c_char_p,),
    "zero_code_name": (c_char_p, c_int),
    "zero_attach": (Status, POINTER(AttachOptions), POINTER(c_void_p), POINTER(Detail)),
    "zero_detach": (None, c_void_p),
    "zero_error_text": (c_char_p, c_void_p),
    "zero_register": (Status, c_void_p, POINTER(ModelSpec)),
    "zero_client_info": (POINTER(ClientInfo), c_void_p),
    "zero_layer_describe": (Status, c_void_p, c_uint32, POINTER(LayerInfo)),
    "zero_tensor_describe": (Status, c_void_p, c_uint32, c_uint32, POINTER(TensorInfo)),
    "zero_blob": (Status, c_void_p, c_void_p, c_size_t, POINTER(c_size_t)),
    "zero_fill_from": (Status, c_void_p, c_int),
    "zero_fill": (Status, c_void_p, POINTER(Span), c_void_p),
    "zero_fill_end": (Status, c_void_p),
    "zero_read": (Status, c_void_p, c_int, POINTER(Span), c_void_p),
    "zero_gather": (Status, c_void_p, c_uint32, POINTER(c_void_p)),
    "zero_prefetch": (Status, c_void_p, c_uint32),
    "zero_release": (Status, c_void_p, c_uint32),
    "zero_window": (Status, c_void_p, c_uint32, POINTER(c_void_p)),
    "zero_submit": (Status, c_void_p, c_uint32),
    "zero_step": (Status, c_void_p, POINTER(StepArgs), POINTER(StepResult)),
    "zero_version_open": (Status, c_void_p, c_uint64, POINTER(c_uint64)),
    "zero_version_close": (Status, c_void_p),
    "zero_versions": (Status, c_void_p, POINTER(c_uint64), c_size_t, POINTER(c_size_t)),
}


def _places() -> List[str]:
    named = os.environ.get("ZEROCLIENT_LIBRARY")
    if named:
        return [named]
    here = pathlib.Path(__file__).resolve().parent
    # In the package, as wheels have it; in lib when the package is lib/zerod/python/zeroclient.
    # One that is there and cannot be loaded is an error: another may be of another version.
    for folder in (here, here.parent.parent.parent):
        if (folder / SONAME).exists():
            return [str(folder / SONAME)]
    return [SONAME, "/usr/local/lib/" + SONAME]


def load() -> ctypes.CDLL:
    """The library, checked; ImportError says where it was looked for and what to do."""
    tried = []
    for place in _places():
        try:
            library = ctypes.CDLL(place)
            break
        except OSError as error:
            tried.append(str(error))
    else:
        raise ImportError("libzeroclient was not found: install zerod, or set ZEROCLIENT_LIBRARY "
                          "to the path of its " + SONAME + " (" + "; ".join(tried) + ")")
    if not hasattr(library, "zero_abi"):
        raise ImportError(f"{place} is older than this package: install the same version of both")
    for name, (result, *arguments) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if library.zero_abi() != ABI:
        raise ImportError(f"{place} (version {library.zero_version().decode()}) has binary "
                          f"interface {library.zero_abi()}, this package was made for {ABI}: "
                          "install the same version of both")
    return library
