# SPDX-License-Identifier: MIT
"""One exception for each code of the C library (proto/codes.def), under its scope.

The scope says what must be made anew before a retry can help: RequestError the call alone,
SessionError the client, GroupError the membership, NodeError this process.
"""
from typing import Dict, Type


class ZeroError(Exception):
    """A call that failed. code: the number of codes.def; name: "STEP_ABORTED"; doing: what was
    being done; text: what, where and what to do."""

    code = 0
    name = "OK"

    def __init__(self, text: str = "", doing: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.doing = doing

    def __str__(self) -> str:
        return f"{self.doing}: {self.text}" if self.doing else self.text


class RequestError(ZeroError):
    """Only this call failed."""


class SessionError(ZeroError):
    """The client is of no more use: close it and attach again."""


class GroupError(ZeroError):
    """The group lost a rank and meets again by itself."""


class NodeError(ZeroError):
    """This process, or its machine, cannot go on so."""


class InvalidArgument(RequestError, ValueError):
    """An argument is not allowed."""
    code, name = 1, "INVALID_ARGUMENT"


class InvalidState(RequestError):
    """Not possible now."""
    code, name = 2, "INVALID_STATE"


class NotFound(RequestError, LookupError):
    """There is no such thing."""
    code, name = 3, "NOT_FOUND"


class Busy(RequestError):
    """Somebody else holds it."""
    code, name = 4, "BUSY"


class DeadlinePassed(RequestError, TimeoutError):
    """The deadline passed; the text names who is waited for."""
    code, name = 5, "DEADLINE"


class Conflict(RequestError):
    """The ranks do not agree."""
    code, name = 6, "CONFLICT"


class Mismatch(RequestError):
    """Differs from what is registered."""
    code, name = 7, "MISMATCH"


class ConfigError(RequestError, ValueError):
    """The configuration is not accepted."""
    code, name = 8, "CONFIG"


class Unsupported(RequestError):
    """Known, but not supported."""
    code, name = 9, "UNSUPPORTED"


class TooLarge(RequestError):
    """Over a limit."""
    code, name = 10, "TOO_LARGE"


class Interrupted(RequestError):
    """The caller did not want to wait longer."""
    code, name = 11, "INTERRUPTED"


class StepAborted(RequestError):
    """The group dropped the step in progress: repeat it from the same weights."""
    code, name = 20, "STEP_ABORTED"


class StepPending(RequestError):
    """A step is on its way: call step() again to wait on."""
    code, name = 21, "STEP_PENDING"


class ScaleExhausted(RequestError):
    """Gradients overflow at the smallest loss scale."""
    code, name = 22, "SCALE_EXHAUSTED"


class TooManySkips(RequestError):
    """Too many steps in a row were skipped."""
    code, name = 23, "TOO_MANY_SKIPS"


class ProtocolError(SessionError):
    """The daemon broke the protocol."""
    code, name = 30, "PROTOCOL"


class VersionError(SessionError):
    """The daemon, or the library, is of another version."""
    code, name = 31, "VERSION"


class NotPermitted(SessionError):
    """Not permitted."""
    code, name = 32, "PERMISSION"


class DaemonLost(SessionError, ConnectionError):
    """The daemon is gone."""
    code, name = 33, "DAEMON_LOST"


class DaemonSilent(SessionError, TimeoutError):
    """The daemon does not answer."""
    code, name = 34, "DAEMON_SILENT"


class PeerLost(GroupError):
    """A rank left the group."""
    code, name = 40, "PEER_LOST"


class NoMemory(NodeError, MemoryError):
    """Memory cannot be had."""
    code, name = 50, "NO_MEMORY"


class InputOutputError(NodeError):
    """An input or output call failed."""
    code, name = 51, "IO"


class SystemCallError(NodeError):
    """A system call failed."""
    code, name = 52, "SYSTEM"


class Corrupt(NodeError):
    """What was kept does not check out."""
    code, name = 53, "CORRUPT"


def _classes(above: Type["ZeroError"]) -> Dict[int, Type["ZeroError"]]:
    out: Dict[int, Type[ZeroError]] = {}
    for each in above.__subclasses__():
        if "code" in vars(each):
            out[each.code] = each
        out.update(_classes(each))
    return out


BY_CODE = _classes(ZeroError)
