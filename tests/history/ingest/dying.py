"""Failpoints that end a run within the process of the test."""

from __future__ import annotations

from loadmanager.history.ingest.failpoints import Failpoints


class Crash(BaseException):
    """What a run dies of in place of its whole process."""


class Fragile(Failpoints):
    """Dies in one thread of this process: what was not committed is as lost as with all of it."""

    def die(self) -> None:
        raise Crash
