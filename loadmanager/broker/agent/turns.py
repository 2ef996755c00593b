"""The hooks that run at this moment, and those that a new hook must wait for: hooks of overlapping ranges.

Bundles in the table do not overlap. But a bundle that is gone (split, merged) and still has running hooks overlaps the
bundles in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from statechannel.law.bundle import Bundle

Task = asyncio.Task[None]


class Turns:
    """The running and waiting hooks by bundle. `exists` tells whether the table has a bundle at this moment."""

    def __init__(self, exists: Callable[[Bundle], bool]) -> None:
        self._exists = exists
        self._hooks: dict[Bundle, list[Task]] = {}
        self._gone: dict[str, set[Bundle]] = {}
        """By namespace, bundles with hooks that are not in the table any more."""

    def of(self, bundle: Bundle) -> tuple[Task, ...]:
        """Hooks of exactly this bundle that have not ended."""
        return tuple(self._hooks.get(bundle, ()))

    def bundles(self) -> tuple[Bundle, ...]:
        """The bundles with hooks that have not ended."""
        return tuple(self._hooks)

    def before(self, bundle: Bundle) -> tuple[Task, ...]:
        """Hooks that have not ended, of this bundle and of bundles that are gone and overlap it."""
        gone = self._gone.get(bundle.namespace, ())
        overlapping = (b for b in gone if b != bundle and b.lo < bundle.hi and bundle.lo < b.hi)
        return (*self.of(bundle), *(hook for b in overlapping for hook in self._hooks[b]))

    def add(self, bundle: Bundle, hook: Task) -> None:
        """Note a hook until it ends."""
        self._hooks.setdefault(bundle, []).append(hook)
        if not self._exists(bundle):
            self.went(bundle)
        hook.add_done_callback(lambda done: self._ended(bundle, done))

    def went(self, bundle: Bundle) -> None:
        """The bundle is not in the table any more."""
        if bundle in self._hooks:
            self._gone.setdefault(bundle.namespace, set()).add(bundle)

    def _ended(self, bundle: Bundle, hook: Task) -> None:
        hooks = self._hooks[bundle]
        hooks.remove(hook)
        if hooks:
            return
        del self._hooks[bundle]
        gone = self._gone.get(bundle.namespace, set())
        gone.discard(bundle)
        if not gone:
            self._gone.pop(bundle.namespace, None)
