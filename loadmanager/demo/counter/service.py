"""The counter service: the hooks that the load manager calls, and the counters over HTTP.

Bundles of counters come and go, and every request is admitted first. The HTTP interface keeps the contract of
`loadmanager.client.redirection`:

POST /v1/counters {"topic": "demo/counters/apples", "id": "a-unique-request-id"} -> {"value", "broker", "token"}
GET  /v1/counters?topic=demo/counters/apples                                    -> {"value", "broker", "token"}
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from loadmanager import Broker, Bundle, BundleLoad, Claim, Destination, Key, Moved, NotFound, NotServing, Token
from loadmanager.client.redirection import CLUSTER_HEADER, TOKEN_HEADER, problem_of
from loadmanager.demo.counter.ledger import Held, Ledger, LedgerUnavailable, Stored
from statechannel.errors import InvalidName
from statechannel.law.record import MAX_HAND_OFF_BYTES

_handed = msgspec.msgpack.Decoder(dict[str, int])


class Counters:
    """A `BundleHost`. `broker` is set before the broker starts."""

    broker: Broker

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held: dict[Bundle, Held] = {}
        self._served: dict[Bundle, Counter[str]] = {}
        self._window = (time.monotonic(), time.process_time())

    # --- for clients

    async def increment(self, topic: str, request_id: str, cluster: str | None = None) -> tuple[Stored, Token]:
        """Add one; returns the answer, and the present token (a repeated request gets its old answer).

        Raises Moved, NotServing, NotFound, InvalidName.
        """
        async with self.broker.admit(topic, cluster=cluster) as claim:
            held = self._held_under(claim)
            parsed = Key.parse(topic)
            self._served.setdefault(claim.bundle, Counter())[parsed.full_name] += 1
            return await self._ledger.increment(held, parsed, request_id), claim.token

    async def value(self, topic: str, cluster: str | None = None) -> tuple[int, Token]:
        """The counter at this moment. Raises as `increment`."""
        async with self.broker.admit(topic, cluster=cluster) as claim:
            held = self._held_under(claim)
            return held.values.get(Key.parse(topic).full_name, 0), claim.token

    def _held_under(self, claim: Claim) -> Held:
        held = self._held.get(claim.bundle)
        if held is None or held.claim != claim:
            raise NotServing(f"{claim.bundle} is not loaded")
        return held

    # --- for the load manager

    async def prepare(self, bundle: Bundle) -> None:
        """Nothing to warm up: the counters come with the hand-off."""

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        """Raise the fence first, then load the counters."""
        handed = None if hand_off is None else _handed.decode(hand_off)
        self._held[bundle] = await self._ledger.open(bundle, token, handed)

    async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:
        """Let requests in progress end, then hand the counters over; if that fails the next owner reads the file."""
        await self.broker.quiesce(bundle)
        self._served.pop(bundle, None)
        held = self._held.pop(bundle, None)
        try:
            values = await self._ledger.close(held) if held is not None else None
        except LedgerUnavailable:
            return None
        hand_off = msgspec.msgpack.encode(values) if values is not None else None
        return hand_off if hand_off is not None and len(hand_off) <= MAX_HAND_OFF_BYTES else None

    async def abandon(self, bundle: Bundle) -> None:
        """Forget it; the ledger refuses writes that are still under way once another broker owns it."""
        self._held.pop(bundle, None)
        self._served.pop(bundle, None)

    async def positions(self, bundle: Bundle) -> list[int]:
        """Positions of its counters, so that a hot bundle can be split into parts with equally many."""
        held = self._held.get(bundle)
        return [] if held is None else [Key.parse(name).position for name in list(held.values)]

    async def load(self) -> Mapping[Bundle, BundleLoad]:
        """Rates since the last call; the process's CPU is shared out by requests."""
        now_s, cpu_s = time.monotonic(), time.process_time()
        window_s, used_s = now_s - self._window[0], cpu_s - self._window[1]
        served, self._served, self._window = self._served, {}, (now_s, cpu_s)
        total = sum(counts.total() for counts in served.values()) or 1
        loads: dict[Bundle, BundleLoad] = {}
        for bundle, held in self._held.items():
            counts = served.get(bundle, Counter())
            rate = counts.total() / window_s
            loads[bundle] = BundleLoad(
                keys=len(held.values),
                in_rate_msg_s=rate,
                out_rate_msg_s=rate,
                in_rate_bytes_s=100 * rate,
                out_rate_bytes_s=100 * rate,
                cpu_percent=100 * used_s / window_s * counts.total() / total,
                hottest_keys=tuple((key, 2 * n / window_s) for key, n in counts.most_common(3)),
            )
        return loads


class Increment(msgspec.Struct):
    """The body of a POST. The same id again is the same increment."""

    topic: str
    id: str


_increment = msgspec.json.Decoder(Increment)


def application(counters: Counters) -> web.Application:
    """The routes."""

    async def post(request: web.Request) -> web.Response:
        try:
            asked = _increment.decode(await request.read())
        except msgspec.MsgspecError as error:
            return web.Response(status=400, text=f'send {{"topic": …, "id": …}}: {error}')
        stored, token = await counters.increment(asked.topic, asked.id, request.headers.get(CLUSTER_HEADER))
        return _answer(stored, token)

    async def get(request: web.Request) -> web.Response:
        value, token = await counters.value(request.query.get("topic", ""), request.headers.get(CLUSTER_HEADER))
        return _answer(Stored(value, counters.broker.name, str(token)), token)

    app = web.Application(middlewares=[_redirecting])
    app.router.add_post("/v1/counters", post)
    app.router.add_get("/v1/counters", get)
    return app


def _answer(stored: Stored, token: Token) -> web.Response:
    headers = {TOKEN_HEADER: str(token)}
    return web.Response(body=msgspec.json.encode(stored), content_type="application/json", headers=headers)


@web.middleware
async def _redirecting(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except (Moved, NotServing) as error:
        status, headers, body = problem_of(error)
        return web.Response(status=status, headers=headers, body=body)
    except NotFound as error:
        return web.Response(status=404, text=str(error))
    except InvalidName as error:
        return web.Response(status=400, text=str(error))


@asynccontextmanager
async def served(counters: Counters, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[str]:
    """Serve while the context is open; gives the URL."""
    runner = web.AppRunner(application(counters), access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
