"""Points at which tests kill a run. Without the environment variable no point is deadly.

`LOADMANAGER_HISTORY_FAILPOINT=name:times` ends this process, its JVM and its workers with SIGKILL when the point of
that name is reached for the `times`-th time. No code runs afterwards, as when the machine fails.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping

VARIABLE = "LOADMANAGER_HISTORY_FAILPOINT"
POINTS = ("begun", "bronze", "judged", "head", "silver", "progress", "gold")
"""In the order of a batch: `begun` before anything is written, each other point after the commit that it is named for.
At `judged` the batch's rows are known, and some may be written; `head` is passed after each of its tables."""


class Failpoints:
    """The points that a run passes; `reached` returns, or never does."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        name, _, times = environment.get(VARIABLE, "").partition(":")
        self._deadly = name
        self._times = int(times or 1)
        self._passed: Counter[str] = Counter()

    def reached(self, name: str) -> None:
        """This point is passed now."""
        self._passed[name] += 1
        if name == self._deadly and self._passed[name] == self._times:
            self.die()

    def die(self) -> None:
        """End at once; with the JVM, where this process leads a group of its own."""
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


NEVER = Failpoints({})
"""No point is deadly."""
