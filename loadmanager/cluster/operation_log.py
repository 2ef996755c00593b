"""Operations: requests that run once although they are sent twice, or that go on after they were answered.

A topic of one partition that every broker reads to its end. The law, by the state of an operation when an entry comes:

| entry                     | unknown, forgotten | running             | cancelling | ended   |
|---------------------------|--------------------|---------------------|------------|---------|
| `Begun`                   | running            | refused             | refused    | refused |
| `Cancelled`               | refused            | cancelling          | refused    | refused |
| `Ended` by who began it   | refused            | ended               | ended      | refused |
| `Ended` by another        | refused            | refused             | refused    | refused |
| `Dropped` by who began it | refused            | unknown             | unknown    | refused |

So of all brokers that get the same request, exactly one carries it out. A `Begun` counts only if the log took no other
one of that id among the last `KEPT_ENTRIES`, accepted or refused, except a dropped one. Nothing older matters, and only
what is three times as far back is trimmed. So a reader that starts later accepts no `Begun` that another one refuses.
Beyond `KEPT_AT_MOST` operations, the oldest are forgotten earlier. No clock decides here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import msgspec

from loadmanager.errors import Conflict, NotFound
from statechannel.errors import LogUnavailable
from statechannel.ports import Log, LogEntry, Payload, TopicSpec
from statechannel.runtime.topic_reader import TopicReader

OPERATIONS_TOPIC = "operations"
OPERATIONS = TopicSpec(OPERATIONS_TOPIC, 1)

KEPT_ENTRIES = 60_000
"""A repeated request gets the first one's answer until so many entries follow the last `Begun` of its id."""

KEPT_AT_MOST = 20_000
"""The most operations kept; the oldest are forgotten first."""

BODY_CHARACTERS, BODIES_CHARACTERS = 64 << 10, 32 << 20
"""The longest answer that is kept, and the length of all of them together."""

TRIM_EVERY = 1_000
"""Entries written by this broker between two trims."""

TIMEOUT_S = 10.0


class OperationState(StrEnum):
    """The states of an operation."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    ENDED = "ended"


class Begun(msgspec.Struct, frozen=True, tag="begun", omit_defaults=True, kw_only=True):
    """A broker begins an operation. `entry` is unique; `request` is a digest of the request.

    `principal` asked for `action` about a thing, whose name is `about`; `broker` is `name#incarnation`.
    """

    entry: str
    id: str
    at_ms: int
    principal: str
    action: str
    about: str = ""
    namespace: str = ""
    request: str
    broker: str


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled", kw_only=True):
    """An operation is asked to stop."""

    entry: str
    id: str
    at_ms: int
    principal: str


class Ended(msgspec.Struct, frozen=True, tag="ended", omit_defaults=True, kw_only=True):
    """The answer of an operation. `begun` is the `entry` that began it; `body` None: it was too long to be kept."""

    entry: str
    id: str
    at_ms: int
    begun: str
    status: int
    headers: dict[str, str] = {}
    body: str | None = None


class Dropped(msgspec.Struct, frozen=True, tag="dropped", kw_only=True):
    """This broker should not carry it out, and has done nothing: the key can be used again."""

    entry: str
    id: str
    begun: str


Entry = Begun | Cancelled | Ended | Dropped


class Operation(msgspec.Struct, frozen=True):
    """An operation, as of the entries that were read; `wanted` is the offset of its last `Begun`."""

    begun: Begun
    wanted: int
    offset: int
    cancelled: Cancelled | None = None
    ended: Ended | None = None

    @property
    def id(self) -> str:
        """Its name, the same at all brokers."""
        return self.begun.id

    @property
    def state(self) -> OperationState:
        """Its state by the log; whether its broker is still there is not in the log."""
        if self.ended is not None:
            return OperationState.ENDED
        return OperationState.RUNNING if self.cancelled is None else OperationState.CANCELLING


class Step(msgspec.Struct, frozen=True):
    """What an entry did: the operation before and after it; `accepted` False: nothing."""

    entry: str
    accepted: bool
    before: Operation | None
    after: Operation | None


class OperationFold:
    """The operations after the entries applied so far. Pure."""

    def __init__(self) -> None:
        self._known: dict[str, Operation] = {}  # that which was not wanted for the longest time first
        self.body_bytes = 0
        """The length of all kept answers together."""

    def apply(self, entry: LogEntry) -> Step | None:
        """Take the next entry, in the order of offsets; None for one that is not an entry of operations."""
        self._forget(entry.offset)
        try:
            given = _decode(entry.value or b"")
        except msgspec.MsgspecError:
            return None
        before = self._known.get(given.id)
        after, accepted = _after(before, given, entry)
        if accepted and after is None:
            del self._known[given.id]
        elif after is not None:
            self._put(given.id, after, again=isinstance(given, Begun))
        return Step(given.entry, accepted, before, after)

    def _put(self, operation_id: str, operation: Operation, *, again: bool) -> None:
        before = self._known.pop(operation_id, None) if again else self._known.get(operation_id)
        self._known[operation_id] = operation
        self.body_bytes += _length(operation) - (0 if before is None else _length(before))

    def _forget(self, newest: int) -> None:
        while self._known:
            oldest = next(iter(self._known.values()))
            if oldest.wanted + KEPT_ENTRIES >= newest and len(self._known) <= KEPT_AT_MOST:
                return
            del self._known[oldest.id]
            self.body_bytes -= _length(oldest)

    def get(self, operation_id: str) -> Operation | None:
        """The operation, if it is known and not forgotten."""
        return self._known.get(operation_id)

    def all(self) -> Iterable[Operation]:
        """All of them, the oldest first."""
        return self._known.values()

    def __len__(self) -> int:
        return len(self._known)


def _length(operation: Operation) -> int:
    return 0 if operation.ended is None else len(operation.ended.body or "")


def _after(before: Operation | None, given: Entry, entry: LogEntry) -> tuple[Operation | None, bool]:
    """The operation after an entry, and whether the law accepts it: the table above."""
    if before is None:
        began = Operation(given, entry.offset, entry.offset) if isinstance(given, Begun) else None
        return began, began is not None
    if isinstance(given, Begun):
        return msgspec.structs.replace(before, wanted=entry.offset), False
    if before.ended is not None:
        return before, False
    match given:
        case Cancelled() if before.cancelled is None:
            return msgspec.structs.replace(before, cancelled=given), True
        case Ended() if given.begun == before.begun.entry:
            return msgspec.structs.replace(before, ended=given), True
        case Dropped() if given.begun == before.begun.entry:
            return None, True
        case _:
            return before, False


_decode: Callable[[bytes], Entry] = msgspec.json.Decoder(Entry).decode


def id_of(principal: str, key: str) -> str:
    """The id of the operation that a principal gave this key: the same at every broker."""
    return blake2b(f"{principal}\0{key}".encode(), digest_size=12).hexdigest()


class OperationLog:
    """The operations of all brokers; keep `run()` running. `on_cancel` listeners are called on the loop."""

    def __init__(self, log: Log, wall_ms: Callable[[], int], nonce: str) -> None:
        self._log = log
        self._wall_ms = wall_ms
        self._nonce = nonce
        self._written, self._trimmed = 0, -TRIM_EVERY
        self._fold = OperationFold()
        self._awaited: dict[str, asyncio.Future[Step]] = {}
        self._changed = asyncio.Event()
        self._cancels: dict[str, Callable[[], None]] = {}
        self._dropping: set[asyncio.Task[None]] = set()
        self._reader = TopicReader(log, OPERATIONS, self._take, TIMEOUT_S)

    # --- reading

    def all(self) -> list[Operation]:
        """Every operation, the oldest first."""
        return list(self._fold.all())

    def get(self, operation_id: str) -> Operation:
        """Raises NotFound."""
        found = self._fold.get(operation_id)
        if found is None:
            raise NotFound(f"there is no operation {operation_id}; the last {KEPT_AT_MOST:,} are kept")
        return found

    async def ended(self, operation_id: str, timeout_s: float) -> Operation | None:
        """Wait at most so long until the operation has ended; None if it was dropped or forgotten meanwhile."""
        try:
            async with asyncio.timeout(timeout_s):
                while (found := self._fold.get(operation_id)) is not None and found.ended is None:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._fold.get(operation_id)

    # --- writing: each raises LogUnavailable, when the entry may count or not

    async def begin(
        self, operation_id: str | None, principal: str, action: str, about: str, namespace: str, request: str,
        broker: str, cancel: Callable[[], None],
    ) -> Operation | None:  # fmt: skip
        """Begin an operation (None: under a new id). Returns it, or None if it is known already: see `get`.

        `cancel` is called on the loop when it is cancelled, at any broker.
        """
        entry = self._next()
        begun = Begun(
            entry=entry,
            id=operation_id or id_of(self._nonce, entry),
            at_ms=self._wall_ms(),
            principal=principal,
            action=action,
            about=about,
            namespace=namespace,
            request=request,
            broker=broker,
        )
        self._cancels[entry] = cancel
        try:
            step = await self._write(begun)
        except BaseException:
            del self._cancels[entry]
            raise
        if not step.accepted:
            del self._cancels[entry]
            return None
        return step.after

    async def end(self, operation: Operation, status: int, headers: Mapping[str, str], body: str | None) -> None:
        """Keep the answer; its body only if it is short, and there is room."""
        self._cancels.pop(operation.begun.entry, None)
        if body is not None and len(body) > min(BODY_CHARACTERS, BODIES_CHARACTERS - self._fold.body_bytes):
            body = None
        entry = self._next()
        begun, at_ms = operation.begun.entry, self._wall_ms()
        await self._write(
            Ended(
                entry=entry, id=operation.id, at_ms=at_ms, begun=begun, status=status, headers=dict(headers), body=body
            )
        )

    async def drop(self, operation: Operation) -> None:
        """Forget the operation: another broker is to do it."""
        self._cancels.pop(operation.begun.entry, None)
        await self._write(Dropped(entry=self._next(), id=operation.id, begun=operation.begun.entry))

    async def cancel(self, operation_id: str, principal: str) -> Operation:
        """Ask the operation's broker to cancel it. Raises NotFound, Conflict if it has ended."""
        await self._reader.catch_up()
        found = self.get(operation_id)
        if found.state is OperationState.RUNNING:
            entry = Cancelled(entry=self._next(), id=operation_id, at_ms=self._wall_ms(), principal=principal)
            await self._write(entry)
            found = self.get(operation_id)
        if found.state is OperationState.ENDED:
            raise Conflict(f"operation {operation_id} has ended")
        return found

    def _next(self) -> str:
        self._written += 1
        return f"{self._nonce}.{self._written}"

    async def _write(self, entry: Entry) -> Step:
        if not await self._reader.wait_ready(TIMEOUT_S):
            raise LogUnavailable(f"{OPERATIONS_TOPIC} is not read yet: try again")
        read_back: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        self._awaited[entry.entry] = read_back
        try:
            await self._reader.append(0, [Payload(entry.id.encode(), msgspec.json.encode(entry))])
            await self._trim()
            return await self._reader.answer(read_back)
        finally:
            self._awaited.pop(entry.entry, None)

    async def _trim(self) -> None:
        if self._written - self._trimmed < TRIM_EVERY:
            return
        self._trimmed = self._written
        (begin,), (end,) = await self._log.begins(OPERATIONS_TOPIC), await self._log.ends(OPERATIONS_TOPIC)
        if end - 3 * KEPT_ENTRIES > begin:
            await self._log.trim(OPERATIONS_TOPIC, 0, end - 3 * KEPT_ENTRIES)

    # --- running

    async def start(self) -> None:
        """Create or check the topic. Raises LogUnavailable, TopicMismatch; can be repeated."""
        await self._reader.start()

    async def run(self) -> None:
        """Read until cancelled; call `start` first."""
        await self._reader.run()

    def _take(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            step = self._fold.apply(entry)
            if step is None:
                continue
            self._tell(step)
            waiting = self._awaited.get(step.entry)
            if waiting is not None and not waiting.done():
                waiting.set_result(step)
        self._changed.set()
        self._changed = asyncio.Event()

    def _tell(self, step: Step) -> None:
        if not step.accepted or step.after is None or step.after.begun.entry.rpartition(".")[0] != self._nonce:
            return
        cancel = self._cancels.get(step.after.begun.entry)
        if step.before is None and cancel is None:  # it was read back too late: its request was answered 503
            dropping = asyncio.get_running_loop().create_task(self._drop_late(step.after))
            self._dropping.add(dropping)
            dropping.add_done_callback(self._dropping.discard)
        elif step.after.state is OperationState.CANCELLING and cancel is not None:
            cancel()

    async def _drop_late(self, operation: Operation) -> None:
        with suppress(LogUnavailable):
            await self.drop(operation)


def digest_of(*parts: Any) -> str:
    """A digest of a request: two requests with one key must be the same."""
    return blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()
