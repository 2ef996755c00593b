"""The records that one consumer has pulled from one queue and not consumed: what it may commit. Pure.

Records are consumed in any order, but a commit is one offset: all records below it count as consumed. So it is the
smallest offset that is not consumed. A slow record holds the commit back, and lag grows with it although the later
records are done: look at `available` then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class InFlight:
    """Pulled records of one queue, by offset; RocketMQ's process queue. O(1) per record on average.

    `start` is where the consumer begins to pull; after a seek make a new one. It keeps the offsets from the commit on.
    """

    def __init__(self, start: int) -> None:
        self._pull = start
        self._pulled = deque[int]()
        self._waiting = set[int]()

    @property
    def commit(self) -> int:
        """The offset to commit: the smallest that is not consumed, or the next to pull if there is none."""
        return self._pulled[0] if self._pulled else self._pull

    @property
    def pull(self) -> int:
        """The offset after the last record that was pulled."""
        return self._pull

    def __len__(self) -> int:
        """How many records are pulled and not consumed."""
        return len(self._waiting)

    def pulled(self, offsets: Iterable[int], next_pull: int | None = None) -> None:
        """Take in records in the order of their offsets; gaps are fine (a compacted topic, markers of transactions).

        `next_pull` is where to pull next, if that is beyond the last record. Raises ValueError for an offset below
        `pull`: it was pulled before, and would be consumed twice.
        """
        for offset in offsets:
            if offset < self._pull:
                raise ValueError(
                    f"offset {offset} is below {self._pull}, which is pulled next: after a seek start again"
                )
            self._pulled.append(offset)
            self._waiting.add(offset)
            self._pull = offset + 1
        self._pull = max(self._pull, next_pull or 0)

    def consumed(self, offset: int) -> int:
        """Mark one record as consumed, and return the commit. An offset that is not in flight changes nothing."""
        self._waiting.discard(offset)
        while self._pulled and self._pulled[0] not in self._waiting:
            self._pulled.popleft()
        return self.commit
