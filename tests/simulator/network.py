"""The network between simulated processes and servers: delays, cuts, outages, and lost messages.

A link carries messages between one process and one server in order, as a connection does: requests one way, answers and
pushed messages the other. While it is cut, or its server is down, it holds messages; once it heals, they arrive late.

Messages travel outside of every process: a request under way outlives its sender, and an answer waits for a paused
receiver. Only asyncio's timers are used, so a link works on any event loop, on a real one in real time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from statechannel.errors import StateChannelError

T = TypeVar("T")


class NoAnswer(Exception):
    """No answer came in time; the request may or may not have been carried out, or may be later."""


class Latency(msgspec.Struct, frozen=True):
    """Delay of one message: `least_s` plus an exponential with mean `mean_s`; sometimes a spike of up to `spike_s`."""

    least_s: float = 0.0002
    mean_s: float = 0.0005
    spike_chance: float = 0.0
    spike_s: float = 0.5

    def draw(self, random: Random) -> float:
        spike_s = self.spike_s * random.random() if random.random() < self.spike_chance else 0.0
        return self.least_s + random.expovariate(1.0) * self.mean_s + spike_s


class Faults(msgspec.Struct, frozen=True):
    """Chances per request.

    `lost_request`: it never arrives, or arrives torn (a prefix of it). `lost_answer`: it is carried out, but the caller
    never hears of it. `repeated`: one whose answer was lost is carried out again, up to `repeat_within_s` later, as by
    a producer that was restarted. `late`: one whose caller gave up while the link was cut arrives when it heals.
    """

    lost_request: float = 0.0
    lost_answer: float = 0.0
    repeated: float = 0.0
    repeat_within_s: float = 10.0
    late: float = 0.5


NO_FAULTS = Faults()


class _Message(msgspec.Struct, eq=False):
    arrive: Callable[[], None]
    given_up: Callable[[], bool]


class _Request(Generic[T]):
    """A call under way. Its answer is a function that returns or raises, so that no exception waits in a future."""

    def __init__(
        self,
        perform: Callable[[], T],
        answer: asyncio.Future[Callable[[], T]],
        torn: Callable[[], object] | None,
        again: Callable[[], object] | None,
    ) -> None:
        self.perform = perform
        self.answer = answer
        self.torn = torn
        self.again = again


def _carry_out(perform: Callable[[], T]) -> Callable[[], T]:
    try:
        value = perform()
    except StateChannelError as error:
        refusal = error

        def refuse() -> T:
            raise refusal

        return refuse
    return lambda: value


class _Direction:
    """One way of a link: in order, delayed, held while closed."""

    def __init__(self, latency_s: Callable[[], float]) -> None:
        self._latency_s = latency_s
        self._under_way: deque[_Message] = deque()
        self._due = 0
        self._open = True

    def carry(self, message: _Message) -> None:
        self._under_way.append(message)
        Context().run(asyncio.get_running_loop().call_later, self._latency_s(), self._one_is_due)

    def set_open(self, is_open: bool, arrives_late: Callable[[], bool]) -> None:
        """Close it, or open it and deliver held messages; abandoned ones only if `arrives_late` says so."""
        if is_open and not self._open:
            held = [self._under_way.popleft() for _ in range(self._due)]
            kept = [message for message in held if not message.given_up() or arrives_late()]
            self._under_way.extendleft(reversed(kept))
            self._due = 0
            loop = asyncio.get_running_loop()
            for _ in kept:
                Context().run(loop.call_later, self._latency_s(), self._one_is_due)
        self._open = is_open

    def drop_held(self) -> None:
        """Drop held messages."""
        for _ in range(self._due):
            self._under_way.popleft()
        self._due = 0

    def _one_is_due(self) -> None:
        self._due += 1
        while self._open and self._due:
            self._due -= 1
            self._under_way.popleft().arrive()


class Link:
    """One connection of one process to one server. Made by `Network.link`."""

    def __init__(self, network: Network, process: str, server: str) -> None:
        self.process = process
        self.server = server
        self.closed = False
        self._network = network
        self._requests = _Direction(network.latency_s)
        self._answers = _Direction(network.latency_s)

    async def call(
        self,
        perform: Callable[[], T],
        *,
        timeout_s: float,
        torn: Callable[[], object] | None = None,
        again: Callable[[], object] | None = None,
    ) -> T:
        """Have the server `perform`, and return or raise the result. Raises NoAnswer after `timeout_s`.

        Where the network's faults say so, `torn` is performed instead, or `again` some time later.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Callable[[], T]] = loop.create_future()
        request = _Request(perform, answer, torn, again)
        self._requests.carry(_Message(lambda: self._arrive(request), answer.done))
        # Not asyncio.timeout: nearly all time of a simulated run is spent here, and this costs half as much.
        timer = loop.call_later(timeout_s, self._give_up, answer, timeout_s)
        try:
            give = await answer
        finally:
            timer.cancel()
        return give()

    def _give_up(self, answer: asyncio.Future[Callable[[], Any]], timeout_s: float) -> None:
        def no_answer() -> NoReturn:
            raise NoAnswer(f"{self.server} did not answer {self.process} within {timeout_s} s")

        if not answer.done():
            answer.set_result(no_answer)

    def _arrive(self, request: _Request[T]) -> None:
        network = self._network
        if network.chance(network.faults.lost_request):
            if request.torn is not None:
                request.torn()
            return
        give = _carry_out(request.perform)
        if network.chance(network.faults.lost_answer):
            if request.again is not None:
                network.perhaps_repeat(self.server, request.again)
            return
        self.push(lambda: None if request.answer.done() else request.answer.set_result(give))

    def push(self, arrive: Callable[[], None]) -> None:
        """Send from the server to the process; `arrive` runs outside of the process, unless the link was closed."""
        if not self.closed:
            self._answers.carry(_Message(lambda: None if self.closed else arrive(), _nobody_gave_up))

    def close(self) -> None:
        """The process is gone: its requests under way still arrive, nothing comes back."""
        self.closed = True
        self._requests.drop_held()
        self._answers.drop_held()
        self._network.forget(self)

    def set_open(self, requests: bool, answers: bool) -> None:
        self._requests.set_open(requests, self._network.arrives_late)
        self._answers.set_open(answers, self._network.arrives_late)


def _nobody_gave_up() -> bool:
    return False


class Network:
    """All links, cuts and outages, and the random faults.

    `latency` and `faults` may be replaced at any time. Cuts belong to process names: a restarted process inherits its
    predecessor's.
    """

    def __init__(self, random: Random, latency: Latency | None = None, faults: Faults = NO_FAULTS) -> None:
        self.latency = latency or Latency()
        self.faults = faults
        self._random = random
        self._links: list[Link] = []
        self._no_requests: set[tuple[str, str]] = set()
        self._no_answers: set[tuple[str, str]] = set()
        self._down: set[str] = set()

    def link(self, process: str, server: str) -> Link:
        """A new connection, cut if these two are cut off from each other."""
        link = Link(self, process, server)
        self._links.append(link)
        self._apply(link)
        return link

    def cut(self, process: str, server: str, *, requests: bool = True, answers: bool = True) -> None:
        """Cut the way to the server, the way back, or both."""
        if requests:
            self._no_requests.add((process, server))
        if answers:
            self._no_answers.add((process, server))
        self._apply_all()

    def heal(self, process: str, server: str) -> None:
        """Undo every cut between the two."""
        self._no_requests.discard((process, server))
        self._no_answers.discard((process, server))
        self._apply_all()

    def is_cut(self, process: str, server: str) -> bool:
        """Whether nothing passes between the two in either direction, because of a cut or an outage."""
        pair = (process, server)
        return server in self._down or (pair in self._no_requests and pair in self._no_answers)

    def is_down(self, server: str) -> bool:
        return server in self._down

    def set_down(self, server: str, down: bool) -> None:
        """Take a server down, or bring it back with what it had stored."""
        (self._down.add if down else self._down.discard)(server)
        self._apply_all()

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def arrives_late(self) -> bool:
        return self.chance(self.faults.late)

    def latency_s(self) -> float:
        return self.latency.draw(self._random)

    def perhaps_repeat(self, server: str, again: Callable[[], object]) -> None:
        """Perhaps carry out a second time a request whose answer was lost, unless the server is down then."""
        if self.chance(self.faults.repeated):
            delay_s = self._random.uniform(0, self.faults.repeat_within_s)
            loop = asyncio.get_running_loop()
            Context().run(loop.call_later, delay_s, lambda: None if server in self._down else _carry_out(again))

    def forget(self, link: Link) -> None:
        if link in self._links:
            self._links.remove(link)

    def _apply_all(self) -> None:
        for link in self._links:
            self._apply(link)

    def _apply(self, link: Link) -> None:
        pair, up = (link.process, link.server), link.server not in self._down
        link.set_open(up and pair not in self._no_requests, up and pair not in self._no_answers)
