"""Publishes advice as proposed plans, over the log itself or through a broker's endpoint.

The id of advice is a digest of it, so publishing twice has the effect of once. The cluster decides what to do with it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence

import aiohttp
import msgspec

from loadmanager.broker.wiring import open_log
from loadmanager.client.cluster import Pin
from loadmanager.client.credentials import Credentials
from loadmanager.client.redirection import AnotherCluster
from loadmanager.client.router import Directory
from loadmanager.errors import Conflict, Forbidden, Invalid, LoadManagerError, Unavailable
from loadmanager.leader.plans.advice import Advice
from loadmanager.leader.plans.store import PlanStore
from loadmanager.leader.plans.store import publish as publish_plan
from loadmanager.settings import Settings
from statechannel.errors import LogError
from statechannel.law.table import OwnershipTable
from statechannel.runtime.view import wall_clock_ms

START_S = 10.0
ANSWER_S = 30.0
AUTHOR = "history advise"


def publish(advice: Sequence[Advice], where: Settings | str) -> tuple[str, ...]:
    """Propose each; returns the ids of the plans.

    `where`: the settings of the cluster's brokers (which name its log), or the admin URL of any broker. Raises Invalid
    (stale, out of bounds, of another cluster: with the details), Conflict (too many plans wait already), Unavailable.
    Advice before the one that failed is published.
    """
    if isinstance(where, str):
        return asyncio.run(_posted(advice, where.rstrip("/")))
    return asyncio.run(_written(advice, where))


async def _written(advice: Sequence[Advice], settings: Settings) -> tuple[str, ...]:
    log = open_log(settings)
    store = PlanStore(log, lambda: OwnershipTable(1), wall_clock_ms, secrets.token_hex(6))
    try:
        await log.start(START_S)
        await store.documents.start()
        reading = asyncio.create_task(store.documents.run())
        try:
            if not await store.documents.wait_ready(ANSWER_S):
                raise Unavailable("the topic of plans is not read yet: try again")
            return tuple([(await publish_plan(store, each, settings.cluster, wall_clock_ms())).id for each in advice])
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    except LogError as error:
        raise Unavailable(str(error)) from None
    finally:
        await log.close()


async def _posted(advice: Sequence[Advice], url: str) -> tuple[str, ...]:
    credentials = Credentials.of_environment()
    async with credentials.session(timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session:
        return tuple([await _post(each, url, session, credentials) for each in advice])


async def _post(advice: Advice, url: str, session: aiohttp.ClientSession, credentials: Credentials) -> str:
    directory = Directory((url,), session, credentials, Pin(advice.provenance.cluster))
    body, about = msgspec.json.encode(advice), {"Content-Type": "application/json", "X-Author": AUTHOR}
    try:
        async with (
            directory.asking(url, credentials) as said,
            session.post(
                f"{url}/v1/plans/advice", data=body, headers={**about, **said}, allow_redirects=False
            ) as answer,
        ):
            text = await answer.read()
            if answer.status >= 300:
                raise _refusal(answer.status, text)
            return str(json.loads(text)["id"])
    except AnotherCluster as error:
        raise (Invalid if error.cluster else Unavailable)(str(error)) from None
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
        raise Unavailable(f"{url} does not answer: {str(error) or type(error).__name__}") from None


def _refusal(status: int, body: bytes) -> LoadManagerError:
    try:
        detail = str(json.loads(body)["detail"])
    except (ValueError, KeyError):
        detail = f"status {status}"
    kinds: dict[int, type[LoadManagerError]] = {401: Forbidden, 403: Forbidden, 409: Conflict, 503: Unavailable}
    return kinds.get(status, Invalid)(detail)
