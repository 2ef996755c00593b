"""The counters over HTTP, keeping the contract of `loadmanager.client.redirection`.

POST /v1/counters {"topic": "demo/counters/apples", "id": "a-unique-request-id"} -> {"value", "broker", "token"}
GET  /v1/counters?topic=demo/counters/apples                                    -> {"value", "broker", "token"}
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from loadmanager import Moved, NotFound, NotServing
from loadmanager.client.redirection import CLUSTER_HEADER, TOKEN_HEADER, problem_of
from loadmanager.demo.counter.host import Counters
from loadmanager.demo.counter.ledger import Stored
from statechannel.errors import InvalidName
from statechannel.law.record import Token


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
