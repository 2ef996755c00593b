"""Publishes advice as proposed plans, over the log itself or through a broker's endpoint.

The id of advice is a digest of it, so publishing twice has the effect of once. The cluster decides what to do with it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Sequence

import msgspec

from loadmanager.broker.wiring import open_log
from loadmanager.client.credentials import Credentials
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
        return tuple(_posted(each, where.rstrip("/")) for each in advice)
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


def _posted(advice: Advice, url: str) -> str:
    credentials = Credentials.of_environment()
    headers = {"Content-Type": "application/json", "X-Author": AUTHOR, **credentials.headers(url)}
    request = urllib.request.Request(f"{url}/v1/plans/advice", msgspec.json.encode(advice), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S, context=credentials.context()) as answer:
            return str(json.load(answer)["id"])
    except urllib.error.HTTPError as error:
        raise _refusal(error.code, error.read()) from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{url} does not answer: {error}") from None


def _refusal(status: int, body: bytes) -> LoadManagerError:
    try:
        detail = str(json.loads(body)["detail"])
    except (ValueError, KeyError):
        detail = f"status {status}"
    kinds: dict[int, type[LoadManagerError]] = {401: Forbidden, 403: Forbidden, 409: Conflict, 503: Unavailable}
    return kinds.get(status, Invalid)(detail)
