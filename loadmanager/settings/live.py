"""Keeps one broker's settings current, and changes those of the cluster.

`LiveSettings` reads the topic `settings` and keeps `current`: the cluster's settings over those of the start. Code that
uses a setting reads it each time, or listens. A document that does not fit is noted once and ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from loadmanager.documents.documents import Documents
from loadmanager.documents.fold import SETTINGS_TOPIC, Version
from loadmanager.errors import Invalid
from loadmanager.settings import Settings
from loadmanager.settings.names import changeable, named
from loadmanager.settings.overlay import ClusterValue, Overlay, combined, overlaid, values_after
from statechannel.errors import LogUnavailable
from statechannel.ports import Log
from statechannel.runtime.listeners import Listeners

WRITE_TIMEOUT_S = 10.0
Listener = Callable[[Settings, Settings], None]
_log = logging.getLogger(__name__)


class LiveSettings:
    """The live settings: call `open()`, then `run()`. Reads never wait."""

    def __init__(
        self, start: Settings, log: Log, *, wall_ms: Callable[[], int], nonce: str, note: Callable[[str], None]
    ) -> None:
        self.start = start
        """The settings that this broker was started with."""
        self._overlay = Overlay(start, {}, {})
        self._in_force = False
        self._note = note
        self._noted: dict[str, str] = {}
        self._listeners: Listeners[[Settings, Settings]] = Listeners("the cluster's settings")
        self._documents: Documents[ClusterValue] = Documents(
            log,
            SETTINGS_TOPIC,
            decode=msgspec.json.Decoder(ClusterValue).decode,
            check=self._check,
            wall_ms=wall_ms,
            nonce=nonce,
        )
        self._documents.on_change(self._read)

    # --- reading

    @property
    def current(self) -> Settings:
        """The settings in force now."""
        return self._overlay.settings

    @property
    def ignored(self) -> Mapping[str, str]:
        """The cluster's settings that are ignored here, and why."""
        return self._overlay.ignored

    @property
    def revision(self) -> int:
        """The offset of the last change that was read, for `at`; -1 if there was none."""
        return self._documents.revision

    @property
    def skipped(self) -> int:
        """Entries that this release could not read, since the start."""
        return self._documents.skipped

    def version(self, name: str) -> Version[ClusterValue] | None:
        """The cluster's last change of a setting (by our name), which may have deleted it."""
        return self._documents.get(name)

    def history(self, name: str | None = None) -> Sequence[Version[ClusterValue]]:
        """Every change of a setting (by either name), or of all. Raises NotFound for an unknown name."""
        return self._documents.history(None if name is None else named(name).setting.name)

    def at(self, offset: int) -> Settings:
        """The settings that were in force here after the change at `offset` (an earlier `revision`)."""
        return overlaid(self.start, values_after(self._documents.history(), offset)).settings

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(old, new)` on the loop when the settings in force change; the result unsubscribes."""
        return self._listeners.add(listener)

    def restart_with(self, values: Mapping[str, float]) -> None:
        """Apply these values as if this broker had been started with them. Raises ValueError if they do not fit."""
        self.start = combined(self.start, values)
        self._changed()

    # --- writing

    async def set(
        self, name: str, given: object, *, seen: int | None, author: str, reason: str
    ) -> Version[ClusterValue]:
        """Set a value for the whole cluster. `name` is ours or Pulsar's, `given` a value in its unit, or text.

        `seen`: the version to replace (0: never set); None: any. Raises NotFound, Invalid (with the allowed values),
        Conflict (another change came first), LogUnavailable (it may or may not be written).
        """
        found = changeable(name)
        ours = found.setting.name
        await self._all_read()
        try:
            settings = combined(self.start, {**self._overlay.applied, ours: found.ours(given)})
        except ValueError as error:
            raise Invalid(str(error)) from None
        value = ClusterValue(getattr(settings, ours))
        return await self._documents.put(ours, value, seen=seen, author=author, reason=reason)

    async def unset(self, name: str, *, seen: int | None, author: str, reason: str) -> Version[ClusterValue]:
        """Return to each broker's own value. Raises what `set` raises."""
        ours = changeable(name).setting.name
        await self._all_read()
        return await self._documents.delete(ours, seen=seen, author=author, reason=reason)

    async def _all_read(self) -> None:
        """Read what others have set, so that two values that conflict are not both accepted."""
        if not await self.wait_ready(WRITE_TIMEOUT_S):
            raise LogUnavailable("the cluster's settings are not read yet: try again")
        await self._documents.catch_up()

    def _check(self, name: str, value: ClusterValue | None, _present: Mapping[str, ClusterValue]) -> None:
        """Check the change with the present values; values that are already ignored here must not block it."""
        others = {each: held for each, held in self._overlay.applied.items() if each != name}
        try:
            combined(self.start, others if value is None else {**others, name: value.value})
        except ValueError as error:
            raise Invalid(str(error)) from None

    # --- running

    async def open(self) -> None:
        """Create or check the topic. Raises LogUnavailable, TopicMismatch; can be repeated."""
        await self._documents.start()

    async def wait_ready(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until the topic's content at the start is in force here. Returns True if it is."""
        if await self._documents.wait_ready(timeout_s) and not self._in_force:
            self._in_force = True
            self._changed()
        return self._in_force

    async def run(self) -> None:
        """Read until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._documents.run())
            while not await self.wait_ready(WRITE_TIMEOUT_S):
                pass

    def _read(self, name: str, _old: Version[ClusterValue] | None, new: Version[ClusterValue]) -> None:
        if not new.readable:
            self._note(
                f"the cluster's setting {name} is of another release and cannot be read: the earlier value stays"
            )
        if self._in_force:
            self._changed()

    def _changed(self) -> None:
        old = self._overlay
        self._overlay = overlaid(self.start, values_after(self._documents.history()))
        for name, why in self._overlay.ignored.items():
            if self._noted.get(name) != why:
                self._note(f"the cluster's setting {name} is left out here: {why}")
        self._noted = dict(self._overlay.ignored)
        if old.settings == self._overlay.settings:
            return
        self._listeners.call(old.settings, self._overlay.settings)
