"""Functions that are called with every change of something. One that fails is logged, and the others are called."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")

_log = logging.getLogger(__name__)


class Listeners(Generic[P]):
    """The listeners of `what`, in the order in which they were added."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._listeners: list[Callable[P, object]] = []

    def add(self, listener: Callable[P, object]) -> Callable[[], None]:
        """Call it from now on. Returns the function that removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all with these arguments."""
        for listener in tuple(self._listeners):
            try:
                listener(*args, **kwargs)
            except Exception:  # noqa: BLE001 - a listener's bug is its own; the others and the caller go on
                _log.exception("a listener of %s failed", self._what)
