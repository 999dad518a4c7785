# SPDX-License-Identifier: MIT
"""Finds the socket of this rank's daemon."""
import os
import pathlib
import re
import stat
from typing import Dict, Optional

from . import errors

_LISTENS = 1 << 16  # __SO_ACCEPTCON in the flags of /proc/net/unix


def _running() -> Dict[str, str]:
    """Folder -> socket of this rank, for every group of this user whose daemons listen."""
    rank = os.environ.get("RANK", "0")
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
    only running group of this user. NotFound says what to do."""
    if given:
        return os.fspath(given)
    if os.environ.get("ZERO_SOCKET"):
        return os.environ["ZERO_SOCKET"]
    rank = os.environ.get("RANK", "0")
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
