# SPDX-License-Identifier: MIT
"""Finds the socket of this rank's daemon."""
import os
import pathlib
import re
import stat
from typing import Dict, Optional

from . import errors

_RANKS = ("RANK", "LOCAL_RANK")  # as launchers set them; on one host they are the same
_LISTENS = 1 << 16  # __SO_ACCEPTCON in the flags of /proc/net/unix


def _rank() -> str:
    return next((os.environ[name] for name in _RANKS if os.environ.get(name)), "0")


def _running() -> Dict[str, str]:
    """Folder -> socket of this rank, for every group of this user whose daemons listen."""
    rank = _rank()
    out = {}
    for line in pathlib.Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        words = line.split(None, 7)
        if len(words) < 8 or not int(words[3], 16) & _LISTENS:
            continue
        match = re.fullmatch(r"(/.*)/rank-(\d+)\.sock", words[7])
        if match is None or match[2] != rank:
            continue
        try:
            found = os.lstat(words[7])
        except OSError:
            continue
        if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid():
            out[match[1]] = words[7]
    return out


def find_socket(given: Optional[str] = None) -> str:
    """given; else ZERO_SOCKET; else rank-$RANK.sock in ZERO_RUNTIME_DIR; else in the folder of the
    only running group of this user. RANK is LOCAL_RANK if it is not set, else 0. NotFound says
    what to do."""
    if given:
        return os.fspath(given)
    if os.environ.get("ZERO_SOCKET"):
        return os.environ["ZERO_SOCKET"]
    rank = _rank()
    folder = os.environ.get("ZERO_RUNTIME_DIR")
    if folder:
        return os.path.join(folder, f"rank-{rank}.sock")
    groups = _running()
    if len(groups) == 1:
        return next(iter(groups.values()))
    if groups:
        raise errors.NotFound("several groups are running; name one with ZERO_RUNTIME_DIR: "
                              + ", ".join(sorted(groups)), "find daemon")
    raise errors.NotFound(f"no zerod of yours listens for rank {rank}: start the script with "
                          "zerorun, or daemons with zerorun --daemons-only", "find daemon")


def check_world(world: int) -> None:
    """Mismatch if the launcher started another number of trainers than the group has ranks: those
    that are there would wait for the others."""
    launched = os.environ.get("WORLD_SIZE")
    if launched and launched != str(world):
        raise errors.Mismatch(f"the launcher says WORLD_SIZE={launched}, and the group has {world} "
                              f"ranks: start {world} trainers (torchrun --nproc-per-node {world}), "
                              f"or daemons with zerorun -n {launched}", "find daemon")
