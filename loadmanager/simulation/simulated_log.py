"""A `Log` for one simulated process, and its exclusive writers, with the delays and faults of its link.

An append may be lost, torn (a prefix of it is taken), taken without an acknowledgement, or taken twice. A transaction
may be lost, taken without an acknowledgement, or arrive late, but is never torn and never taken twice. `network.Faults`
says how often; `log_server.py` implements the effects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from loadmanager.simulation.log_server import LOG_SERVER, SimulatedLogServer, Step
from loadmanager.simulation.log_tail import Tail
from loadmanager.simulation.network import Network, NoAnswer
from statechannel.errors import LogUnavailable, RecordTooLarge, WriterFenced
from statechannel.ports import LogEntry, Payload, TopicSpec

T = TypeVar("T")

_FLUSH_TIMEOUT_S = 1.0


class SimulatedLog:
    """A `Log` over a link. Calls time out after `request_timeout_s`, on the clock of the calling process."""

    def __init__(
        self, server: SimulatedLogServer, network: Network, process: str, *, request_timeout_s: float = 5.0
    ) -> None:
        self._server = server
        self.link = network.link(process, LOG_SERVER)
        self._timeout_s = request_timeout_s
        self._closed = False

    async def start(self, timeout_s: float) -> None:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(LogUnavailable):  # a request may be lost; a client asks again
                return await self._ask(_nothing, min(self._timeout_s, left_s))
        raise LogUnavailable(f"{self.link.server} did not answer {self.link.process} within {timeout_s} s")

    async def open_topic(self, spec: TopicSpec) -> int:
        return await self._ask(lambda: self._server.open_topic(spec))

    async def has_topic(self, topic: str) -> bool:
        return await self._ask(lambda: self._server.has_topic(topic))

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        payloads, server = tuple(payloads), self._server
        _check_sizes(payloads, server.max_entry_bytes)
        append = partial(server.append, topic, partition, payloads)
        await self._ask(append, torn=partial(server.append_torn, topic, partition, payloads), again=append)

    async def ends(self, topic: str) -> tuple[int, ...]:
        return await self._ask(lambda: self._server.ends(topic))

    async def begins(self, topic: str) -> tuple[int, ...]:
        return await self._ask(lambda: self._server.begins(topic))

    async def offset_at(self, topic: str, partition: int, at_ms: int) -> int:
        return await self._ask(lambda: self._server.offset_at(topic, partition, at_ms))

    async def trim(self, topic: str, partition: int, before: int) -> None:
        await self._ask(self._step(Step.TRIM, partial(self._server.trim, topic, partition, before)))

    async def read(self, topic: str, partition: int, start: int) -> AsyncGenerator[Sequence[LogEntry], None]:
        """Read in several requests: entries that are compacted or trimmed between two of them are not read."""
        at, end = start, None
        while end is None or at < end:
            read = partial(self._server.read_part, topic, partition, at, end)
            batch, at, end = await self._ask(self._step(Step.READ, read))
            if batch:
                yield batch

    async def tail(self, topic: str, starts: Sequence[int]) -> AsyncGenerator[Sequence[LogEntry], None]:
        tail = Tail(self._server, self.link, topic, starts)
        try:
            await self._attach(tail)
            while True:
                yield await tail.receive()
        finally:
            tail.close()

    async def exclusive(self, writer_id: str) -> SimulatedWriter:
        epoch = await self._ask(self._step(Step.BECOME_WRITER, partial(self._server.new_writer, writer_id)))
        return SimulatedWriter(self._server, self._ask, self._step, writer_id, epoch)

    def _step(self, step: Step, perform: Callable[[], T]) -> Callable[[], T]:
        """Wrap a request so that the server announces the step when it arrives."""
        server, process = self._server, self.link.process

        def announce_and_perform() -> T:
            server.reached(step, process)
            return perform()

        return announce_and_perform

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(NoAnswer):  # an answer means that all before it has arrived, as links keep order
            await self.link.call(_nothing, timeout_s=_FLUSH_TIMEOUT_S)
        self.link.close()

    async def _attach(self, tail: Tail) -> None:
        while True:
            try:
                return await self._ask(lambda: self._server.attach(tail))
            except LogUnavailable:
                if self._closed:
                    raise

    async def _ask(
        self,
        perform: Callable[[], T],
        timeout_s: float | None = None,
        *,
        torn: Callable[[], object] | None = None,
        again: Callable[[], object] | None = None,
    ) -> T:
        if self._closed:
            raise LogUnavailable("this log client was closed; make another one")
        try:
            return await self.link.call(perform, timeout_s=timeout_s or self._timeout_s, torn=torn, again=again)
        except NoAnswer as silence:
            raise LogUnavailable(f"{silence}; retry with back-off") from None


class _Ask(Protocol):
    async def __call__(
        self,
        perform: Callable[[], T],
        timeout_s: float | None = None,
        *,
        torn: Callable[[], object] | None = None,
        again: Callable[[], object] | None = None,
    ) -> T: ...


class _Step(Protocol):
    def __call__(self, step: Step, perform: Callable[[], T]) -> Callable[[], T]: ...


class SimulatedWriter:
    """An `ExclusiveWriter` of one epoch. After a commit with an unknown outcome it accepts no other."""

    def __init__(self, server: SimulatedLogServer, ask: _Ask, step: _Step, writer_id: str, epoch: int) -> None:
        self._server = server
        self._ask = ask
        self._step = step
        self._writer_id = writer_id
        self._epoch = epoch
        self._begun = 0
        self._in_doubt = False
        self._one_at_a_time = asyncio.Lock()

    async def commit(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        payloads, server = tuple(payloads), self._server
        _check_sizes(payloads, server.max_entry_bytes)
        async with self._one_at_a_time:
            if self._in_doubt:
                raise LogUnavailable(
                    "an earlier commit of this writer is in doubt, or it was closed; ask for a new one"
                )
            self._begun += 1
            commit = partial(server.commit, self._writer_id, self._epoch, self._begun, topic, partition, payloads)
            torn = partial(server.commit_torn, topic, partition, payloads)
            self._in_doubt = True  # also if this is cancelled
            with self._heard():
                await self._ask(self._step(Step.COMMIT, commit), torn=torn, again=commit)

    @contextlib.contextmanager
    def _heard(self) -> Generator[None]:
        """An answer of the server, even a refusal, leaves no doubt."""
        try:
            yield
        except WriterFenced:
            self._in_doubt = False
            raise
        self._in_doubt = False

    async def close(self) -> None:
        self._in_doubt = True


def _check_sizes(payloads: Sequence[Payload], most_bytes: int) -> None:
    for payload in payloads:
        size = len(payload.key or b"") + len(payload.value or b"")
        if size > most_bytes:
            raise RecordTooLarge(f"{size} bytes exceed the log's {most_bytes}; write smaller records")


def _nothing() -> None:
    """Only to hear an answer."""
