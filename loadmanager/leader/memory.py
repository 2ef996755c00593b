"""A leader's memory of the duties it asked for in its term, so that it does not ask again too soon. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

import msgspec

LONGEST_PAUSE_S = 60.0
FORGOTTEN_AFTER = 10
"""After how many pauses an entry is forgotten."""
MUCH = 1_000


class Asking(msgspec.Struct, frozen=True, gc=False):
    """When a duty was asked for, about how many bundles, and the pause before it is asked again without progress."""

    at_s: float
    left: int
    pause_s: float


class Asked:
    """What was asked for, by duty and subject."""

    def __init__(self, retry_s: float) -> None:
        self.retry_s = retry_s
        self._asked: dict[tuple[str, Hashable], Asking] = {}
        self._in_turn: deque[tuple[tuple[str, Hashable], Asking]] = deque()

    def __len__(self) -> int:
        return len(self._asked)

    def due_s(self, duty: str, about: Hashable) -> float:
        """When it may be asked for again."""
        asked = self._asked.get((duty, about))
        return float("-inf") if asked is None else asked.at_s + asked.pause_s

    def is_due(self, duty: str, about: Hashable, left: int, now_s: float, *, patient: bool = False) -> bool:
        """Whether to ask for it now: never asked, or asked `pause_s` ago without any progress since.

        If so it counts as asked. The pause is `retry_s`; for a `patient` duty it doubles each time.
        """
        asked = self._asked.get((duty, about))
        if asked is None or left > asked.left:
            self._note((duty, about), Asking(now_s, left, self.retry_s))
            return True
        if left < asked.left:  # progress
            self._note((duty, about), Asking(now_s, left, self.retry_s))
            return False
        if now_s - asked.at_s < asked.pause_s:
            return False
        pause_s = min(2 * asked.pause_s, LONGEST_PAUSE_S) if patient else self.retry_s
        self._note((duty, about), Asking(now_s, left, pause_s))
        return True

    def forget(self, duty: str, about: Hashable) -> None:
        """Allow to ask again at once."""
        self._asked.pop((duty, about), None)

    def forget_all(self, duty: str) -> None:
        """As `forget`, for all subjects of this duty."""
        for key in [key for key in self._asked if key[0] == duty]:
            del self._asked[key]

    def forget_old(self, now_s: float) -> None:
        """Forget old entries, if there are many: some of them each time, in turn."""
        for key, asked in [self._in_turn.popleft() for _ in range(min(MUCH, len(self._in_turn) - MUCH))]:
            if self._asked.get(key) is not asked:
                continue
            if asked.at_s + FORGOTTEN_AFTER * asked.pause_s > now_s:
                self._in_turn.append((key, asked))
            else:
                del self._asked[key]

    def _note(self, key: tuple[str, Hashable], asked: Asking) -> None:
        self._asked[key] = asked
        self._in_turn.append((key, asked))
