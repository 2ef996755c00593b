"""The coordinator over HTTP: what members and administrators ask of a group, at the owner of its bundle.

421 and 503 as in `loadmanager.client.redirection`: ask there, ask again. 409 is a refusal of a member; its body has
`why` and `detail`. Paths have the group's name without `persistent://`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from loadmanager.client.redirection import PROBLEM_TYPE, Moved, NotServing, problem_of
from loadmanager.consumers.coordinator.messages import Beat, Refusal
from loadmanager.consumers.coordinator.records import Partition, Settings, listed
from loadmanager.consumers.coordinator.service import Coordinator, Description
from loadmanager.errors import Conflict, Invalid, NotFound, Unavailable
from statechannel.errors import InvalidName, LogError, LogUnavailable

LONGEST_WAIT_MS = 30_000
LARGEST_BODY_BYTES = 4 << 20
GROUP = "/v1/groups/{tenant}/{namespace}/{group}"
MEMBER = GROUP + "/members/{member}"


class Commit(msgspec.Struct, frozen=True):
    """The body of a commit: by topic and partition, the offset at which the group goes on."""

    epoch: int
    revision: int
    offsets: dict[str, dict[int, int]]


class Refused(msgspec.Struct, frozen=True):
    """The answer to a commit: what of it was refused."""

    refused: Mapping[str, Mapping[int, Refusal]]


class Weights(msgspec.Struct, frozen=True):
    """The body of a rebalance: rates or lags, by topic and partition."""

    weights: dict[str, dict[int, float]] | None = None


_beat, _commit = msgspec.json.Decoder(Beat), msgspec.json.Decoder(Commit)
_settings, _weights = msgspec.json.Decoder(Settings), msgspec.json.Decoder(Weights)


class _Routes:
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def added_to(self, app: web.Application) -> web.Application:
        router = app.router
        router.add_get("/v1/groups", self._list)
        router.add_get(GROUP, self._describe)
        router.add_put(GROUP + "/settings", self._configure)
        router.add_post(GROUP + "/rebalance", self._rebalance)
        router.add_post(MEMBER + "/heartbeat", self._heartbeat)
        router.add_post(MEMBER + "/commit", self._commit)
        router.add_delete(MEMBER, self._leave)
        return app

    async def _heartbeat(self, request: web.Request) -> web.Response:
        beat, wait_s = _beat.decode(await request.read()), _wait_s(request)
        found = await self._coordinator.heartbeat(_group(request), request.match_info["member"], beat, wait_s)
        return _answer(found, 409 if isinstance(found, Refusal) else 200)

    async def _commit(self, request: web.Request) -> web.Response:
        asked = _commit.decode(await request.read())
        offsets = {(topic, number): each for topic, its in asked.offsets.items() for number, each in its.items()}
        found = await self._coordinator.commit(
            _group(request), request.match_info["member"], asked.epoch, asked.revision, offsets
        )
        refused: dict[str, dict[int, Refusal]] = {}
        for (topic, number), refusal in found.items():
            refused.setdefault(topic, {})[number] = refusal
        return _answer(Refused(refused))

    async def _leave(self, request: web.Request) -> web.Response:
        await self._coordinator.leave(_group(request), request.match_info["member"])
        return web.Response(status=204)

    async def _list(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return _answer(sorted(self._coordinator.groups()))

    async def _describe(self, request: web.Request) -> web.Response:
        return _answer(_described(await self._coordinator.describe(_group(request))))

    async def _configure(self, request: web.Request) -> web.Response:
        await self._coordinator.configure(_group(request), _settings.decode(await request.read()))
        return web.Response(status=204)

    async def _rebalance(self, request: web.Request) -> web.Response:
        asked = _weights.decode(await request.read() or b"{}").weights
        weights: dict[Partition, float] | None = None
        if asked is not None:
            weights = {(topic, number): each for topic, its in asked.items() for number, each in its.items()}
        await self._coordinator.rebalance(_group(request), weights)
        return web.Response(status=204)


def _group(request: web.Request) -> str:
    parts = request.match_info
    return f"persistent://{parts['tenant']}/{parts['namespace']}/{parts['group']}"


def _wait_s(request: web.Request) -> float:
    text = request.query.get("wait_ms", "0")
    if not text.isdecimal() or int(text) > LONGEST_WAIT_MS:
        raise Invalid(f"wait_ms is {text!r}: give milliseconds, from 0 to {LONGEST_WAIT_MS}")
    return int(text) / 1000


def _described(found: Description) -> dict[str, Any]:
    """Partitions by their holders: JSON has no tuples as keys."""
    holdings = {name: [each for each, holder in found.holders.items() if holder == name] for name in found.members}
    moving = [
        {"topic": topic, "partition": number, "from": found.holders[topic, number], "to": target}
        for (topic, number), target in sorted(found.targets.items())
    ]
    return {
        "group": found.name,
        "settings": found.settings,
        "generation": found.generation,
        "members": {
            name: {"subscription": each, "partitions": listed(holdings[name])} for name, each in found.members.items()
        },
        "moving": moving,
    }


def _answer(body: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def _problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode({"status": status, "detail": detail})
    return web.Response(body=body, status=status, headers={"Content-Type": PROBLEM_TYPE, **(headers or {})})


@web.middleware
async def _translating(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except (Moved, NotServing) as error:
        status, headers, body = problem_of(error)
        return web.Response(status=status, headers=headers, body=body)
    except (Invalid, InvalidName, msgspec.MsgspecError) as error:
        return _problem(400, str(error))
    except NotFound as error:
        return _problem(404, str(error))
    except Conflict as error:
        return _problem(409, str(error))
    except Unavailable as error:
        status, headers, body = problem_of(NotServing(str(error), error.retry_after_s))
        return web.Response(status=status, headers=headers, body=body)
    except LogUnavailable as error:
        status, headers, body = problem_of(NotServing(str(error)))
        return web.Response(status=status, headers=headers, body=body)
    except LogError as error:
        return _problem(409, str(error))


def application(coordinator: Coordinator) -> web.Application:
    """The routes."""
    app = web.Application(middlewares=[_translating], client_max_size=LARGEST_BODY_BYTES)
    return _Routes(coordinator).added_to(app)


@asynccontextmanager
async def served(coordinator: Coordinator, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[str]:
    """Serve while the context is open; gives the URL."""
    runner = web.AppRunner(application(coordinator), access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
