# SPDX-License-Identifier: MIT
"""A loader that knows where it is, so that a trainer which is started again goes on there, and one
whose step was aborted gets the batches of that step again.

Its position travels in each step's blob. A map-style DataLoader is entered in the middle without
loading what was had; one with state_dict() (torchdata's) is asked; anything else is run through.
"""
import copy
from typing import Any, Dict, Iterator, List, Optional, Tuple

from torch.utils.data import DataLoader

from . import state


class _Behind:
    """A batch sampler without its first `skip` batches."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self.sampler, self.skip = sampler, skip

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.sampler)
        for _ in range(self.skip):
            next(batches, None)
        return batches

    def __len__(self) -> int:
        return max(len(self.sampler) - self.skip, 0)


def _entered_at(loader: Any, skip: int) -> Iterator[Any]:
    if skip and isinstance(loader, DataLoader) and loader.batch_sampler is not None:
        other = copy.copy(loader)
        # DataLoader forbids to change it, for the sake of those who iterate over it already.
        object.__setattr__(other, "batch_sampler", _Behind(loader.batch_sampler, skip))
        object.__setattr__(other, "_iterator", None)
        return iter(other)
    batches = iter(loader)
    for _ in range(skip):
        next(batches, None)
    return batches


class ResumableLoader:
    """Yields what `loader` yields, epoch after epoch as often as it is iterated over. engine: whose
    steps its position travels with. After a start it goes on in the epoch and at the batch that
    follow the last committed step. loader.sampler.set_epoch(epoch) is called where it exists."""

    def __init__(self, loader: Any, name: str = "loader") -> None:
        self.loader, self.name = loader, name
        self.epoch = 0  # of the next batch
        self.batch = 0  # its number in the epoch
        self._begun: Optional[Dict[str, Any]] = None  # random state at the epoch's begin
        # Batches since the last commit, each with the random state in which it was handed out.
        self._since: List[Tuple[Any, Dict[str, Any]]] = []
        self._again: List[Tuple[Any, Dict[str, Any]]] = []  # of these, what comes once more
        self._resume: Optional[Dict[str, Any]] = None
        self._random: Optional[Dict[str, Any]] = None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def _iterate(self) -> Iterator[Any]:
        resume, self._resume = self._resume, None
        if resume is not None and "loader" in resume:
            self.loader.load_state_dict(resume["loader"])
            batches = iter(self.loader)
        else:
            if resume is not None:
                state.set_random_state(resume["begun"])
            self._begun = state.random_state()
            for sampler in (getattr(self.loader, "sampler", None),
                            getattr(self.loader, "batch_sampler", None)):
                if sampler is not None and hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(self.epoch)
            batches = _entered_at(self.loader, self.batch if resume is not None else 0)
        if self._random is not None:
            state.set_random_state(self._random)
            self._random = None
        return batches

    def __iter__(self) -> Iterator[Any]:
        if self._resume is None and not self._again:
            self.batch = 0
        batches = self._iterate()
        while True:
            while self._again:
                batch, random = self._again.pop(0)
                state.set_random_state(random)
                yield batch
            try:
                batch = next(batches)
            except StopIteration:
                break
            self.batch += 1
            self._since.append((batch, state.random_state()))
            yield batch
        self.epoch += 1
        self.batch = 0

    def committed(self) -> None:
        """A step ended: its batches are not needed any more."""
        self._since.clear()

    def has_batches(self) -> bool:
        """Whether it has handed out any since the last commit."""
        return bool(self._since)

    def rewind(self) -> None:
        """The step was aborted: yields its batches again."""
        self._again = list(self._since)

    def state_dict(self) -> Dict[str, Any]:
        out: Dict[str, Any] = {"epoch": self.epoch, "batch": self.batch}
        if hasattr(self.loader, "state_dict"):
            out["loader"] = self.loader.state_dict()
        elif self._begun is not None:
            out["begun"] = self._begun
        return out

    def load_state_dict(self, position: Dict[str, Any], random: Dict[str, Any]) -> None:
        """random: the random state to go on with once it is entered."""
        self.epoch, self.batch = position["epoch"], position["batch"]
        if "loader" in position or "begun" in position:
            self._resume, self._random = position, random
