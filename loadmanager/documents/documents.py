"""The shell of documents: reads the entries of all writers, and writes with compare-and-set on the version.

`fold.py` decides which attempts count. The topic is not compacted: a log may take an append twice, and compaction would
keep the later copy, so that readers before and after it would disagree about which was first. Settings, policies and
plans are such documents.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from loadmanager.documents.fold import ABSENT, DELETED, Accepted, DocumentFold, Entry, Refused, Skipped, Version
from loadmanager.errors import NotFound, VersionConflict
from statechannel.errors import LogUnavailable
from statechannel.ports import Log, LogEntry, Payload, TopicSpec
from statechannel.runtime.listeners import Listeners
from statechannel.runtime.topic_reader import TopicReader

T = TypeVar("T")
Listener = Callable[[str, Version[T] | None, Version[T]], None]
Check = Callable[[str, T | None, Mapping[str, T]], None]

ATTEMPTS = 5
"""How often a change without a named version is retried against faster writers."""
_log = logging.getLogger(__name__)


def _fine(_name: str, _value: Any, _present: Mapping[str, Any]) -> None:
    """Accept every value."""


class Documents(Generic[T]):
    """Named documents, each with a version that counts its changes.

    Call `start()`, then `run()` for as long as they are needed. Reads never fail and never wait: while the log does not
    answer they show what was read. `decode` and `encode` convert a value from and to JSON. `check(name, value,
    present)` raises Invalid before anything is written; `value` None is a deletion, `present` all present documents.
    `nonce` must differ between any two writing processes. `prepare` is awaited with each value before it takes effect
    here, for slow work in steps.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        *,
        decode: Callable[[bytes], T],
        encode: Callable[[T], bytes] = msgspec.json.encode,
        check: Check[T] = _fine,
        wall_ms: Callable[[], int],
        nonce: str,
        timeout_s: float = 10.0,
        prepare: Callable[[T], Awaitable[None]] | None = None,
    ) -> None:
        self.topic = topic
        self.skipped = 0
        """Entries that this release could not read, since the start."""
        self._encode = encode
        self._check = check
        self._wall_ms = wall_ms
        self._nonce = nonce
        self._written = 0
        self._timeout_s = timeout_s
        self._prepare = prepare
        self._fold: DocumentFold[T] = DocumentFold(decode)
        self._listeners: Listeners[[str, Version[T] | None, Version[T]]] = Listeners(topic)
        self._awaited: dict[str, asyncio.Future[Accepted[T] | Refused[T]]] = {}
        spec, before = TopicSpec(topic, 1, compacted=False), None if prepare is None else self._before
        self._reader = TopicReader(log, spec, self._take, timeout_s, before=before)

    # --- reading

    @property
    def ready(self) -> bool:
        """Whether all entries that the topic had at the start have been read."""
        return self._reader.ready

    async def wait_ready(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until it is ready. Returns True if it is."""
        return await self._reader.wait_ready(timeout_s)

    @property
    def revision(self) -> int:
        """The offset of the last entry that was accepted; -1 if there is none."""
        return self._fold.revision

    def get(self, name: str) -> Version[T] | None:
        """The newest version of a document, which may be its deletion; None if it was never written."""
        return self._fold.get(name)

    def values(self) -> Mapping[str, T]:
        """The documents that exist now, by name."""
        return self._fold.values()

    def newest(self) -> Sequence[Version[T]]:
        """The newest version of each document that exists, or that this release cannot read. Any thread."""
        return self._fold.newest()

    def history(self, name: str | None = None) -> Sequence[Version[T]]:
        """Every accepted version, of one document or of all, oldest first."""
        return self._fold.history(name)

    def at(self, offset: int) -> Mapping[str, T]:
        """The documents that existed after the entry at `offset` (an earlier `revision`)."""
        return self._fold.at(offset)

    def on_change(self, listener: Listener[T]) -> Callable[[], None]:
        """Call `listener(name, old, new)` on the loop for each accepted version, also those from before the start.

        Returns a function that unsubscribes. A listener that raises is logged and stops nothing.
        """
        return self._listeners.add(listener)

    async def catch_up(self) -> None:
        """Read everything written so far. Raises LogUnavailable."""
        await self._reader.catch_up()

    # --- writing

    async def put(self, name: str, value: T, *, seen: int | None, author: str, reason: str) -> Version[T]:
        """Set a document if its version still is `seen` (0: never written), or in any case if `seen` is None.

        Returns the new version once this process has read it back. Raises Invalid (nothing was written), Conflict
        (another writer was faster; says who), LogUnavailable (it may or may not be written: look before trying again).
        """
        return await self._change(name, value, seen, author, reason)

    async def delete(self, name: str, *, seen: int | None, author: str, reason: str) -> Version[T]:
        """Delete a document, as `put`. Raises NotFound if there is none, and what `put` raises."""
        return await self._change(name, None, seen, author, reason)

    async def _change(self, name: str, value: T | None, seen: int | None, author: str, reason: str) -> Version[T]:
        await self.know(name, seen)
        for _ in range(ATTEMPTS if seen is None else 1):
            now = self.get(name)
            version = ABSENT if now is None else now.version
            self.check_seen(name, seen)
            if value is None and (now is None or (now.value is None and now.readable)):
                raise NotFound(f"there is no {name!r} in {self.topic}")
            self._check(name, value, self.values())
            answer = await self._attempt(self._entry(name, version, value, author, reason))
            if isinstance(answer, Accepted):
                return answer.new
        raise _conflict(name, seen, self.get(name))

    def check_seen(self, name: str, seen: int | None) -> None:
        """Raise VersionConflict unless the document's version is `seen` (0: never written; None: any)."""
        now = self.get(name)
        if seen not in (None, ABSENT if now is None else now.version):
            raise _conflict(name, seen, now)

    async def know(self, name: str, seen: int | None) -> None:
        """Read what the caller has seen, perhaps at another broker that reads faster. Raises LogUnavailable."""
        if not await self.wait_ready(self._timeout_s):
            raise LogUnavailable(f"{self.topic} is not read yet: try again")
        now = self.get(name)
        if seen is not None and seen > (ABSENT if now is None else now.version):
            await self._reader.catch_up()

    def _entry(self, name: str, seen: int, value: T | None, author: str, reason: str) -> Entry:
        self._written += 1
        raw = msgspec.Raw(DELETED if value is None else self._encode(value))
        return Entry(f"{self._nonce}.{self._written}", name, seen, raw, author, self._wall_ms(), reason)

    async def _attempt(self, entry: Entry) -> Accepted[T] | Refused[T]:
        """Write an entry, and wait until it is read back. Raises LogUnavailable, RecordTooLarge."""
        read_back: asyncio.Future[Accepted[T] | Refused[T]] = asyncio.get_running_loop().create_future()
        self._awaited[entry.id] = read_back
        try:
            await self._reader.append(0, [Payload(entry.name.encode(), msgspec.json.encode(entry))])
            async with asyncio.timeout(self._timeout_s):
                return await read_back
        except TimeoutError:
            raise LogUnavailable(
                f"{entry.name!r} was written to {self.topic} and not read back within {self._timeout_s} s: "
                "check whether it counts before you try again"
            ) from None
        finally:
            self._awaited.pop(entry.id, None)

    # --- running

    async def start(self) -> None:
        """Create or check the topic and note its end. Raises LogUnavailable or TopicMismatch; can be repeated."""
        await self._reader.start()

    async def run(self) -> None:
        """Read until cancelled; starts first if needed."""
        if not self._reader.started:
            await self.start()
        await self._reader.run()

    async def _before(self, entries: Sequence[LogEntry]) -> None:
        assert self._prepare is not None
        for entry in entries:
            value = self._fold.value_in(entry)
            if value is not None:
                await self._prepare(value)

    def _take(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            outcome = self._fold.apply(entry)
            match outcome:
                case Skipped():
                    self._note_skipped(entry.offset, outcome.detail)
                case Refused():
                    self._answer(outcome.id, outcome)
                case Accepted():
                    if not outcome.new.readable:
                        self._note_skipped(
                            entry.offset, f"{outcome.new.name!r} cannot be used here: {outcome.new.defect}"
                        )
                    self._listeners.call(outcome.new.name, outcome.old, outcome.new)
                    self._answer(outcome.id, outcome)

    def _note_skipped(self, offset: int, detail: str) -> None:
        self.skipped += 1
        _log.warning("%s offset %d skipped: %s", self.topic, offset, detail)

    def _answer(self, entry_id: str, outcome: Accepted[T] | Refused[T]) -> None:
        waiting = self._awaited.get(entry_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)


def _conflict(name: str, seen: int | None, now: Version[Any] | None) -> VersionConflict:
    if now is None:
        return VersionConflict(
            f"{name!r} was never written, so it has no version {seen}: look again, and give version 0"
        )
    whose = f"version {now.version} by {now.author or 'an unnamed author'}" + (f" ({now.reason})" if now.reason else "")
    if seen is None:
        return VersionConflict(f"others keep changing {name!r}, last {whose}: try again later")
    return VersionConflict(
        f"{name!r} is at {whose}, not at version {seen}: look at it, and try again with {now.version}"
    )
