"""What `top` asks brokers: one page of bundles at a time, and all brokers; and what it has them do.

All of it raises the client's Failed.
"""

from __future__ import annotations

import asyncio
import io
from contextlib import redirect_stdout
from typing import Any

import msgspec

from loadmanager_api.cli.bundles import page_of
from loadmanager_api.cli.client import Failed, ask
from loadmanager_api.cli.explanations import bundle_of, path_of, show_broker, show_bundle
from loadmanager_api.cli.names import segment
from loadmanager_api.cli.remote import Remote
from statechannel.law.bundle import Bundle

PAGE = 200
"""Bundles that are on the screen at most: however many there are, no more are asked for."""


class Filters(msgspec.Struct, frozen=True):
    """Which bundles to show. `order`: by `name`, or by `load`, only those of known load."""

    namespace: str | None = None
    owner: str | None = None
    state: str | None = None
    order: str = "name"


class Seen(msgspec.Struct, frozen=True):
    """How the cluster is, apart from its bundles; empty where it is not ours to see.

    `findings` are what is wrong, worst first; None where that is not ours to see, or the broker lacks the route.
    """

    brokers: list[dict[str, Any]]
    usage: dict[str, Any]
    balancing: dict[str, Any]
    findings: list[dict[str, Any]] | None = None


async def seen(remote: Remote) -> Seen:
    """The cluster at this moment."""
    paths = ("/v1/usage", "/v1/balancing", "/v1/health")
    brokers, usage, balancing, findings = await asyncio.gather(
        ask(remote, "GET", "/v1/brokers"), *(_if_allowed(remote, path) for path in paths)
    )
    return Seen(brokers, usage or {}, balancing or {}, findings)


async def _if_allowed(remote: Remote, path: str) -> Any:
    try:
        return await ask(remote, "GET", path)
    except Failed as error:
        if error.status not in (403, 404):
            raise
        return None


async def page(remote: Remote, filters: Filters, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
    """Bundles behind `after`, and what the next page is behind."""
    return await page_of(remote, msgspec.structs.asdict(filters), after, PAGE)


async def revision(remote: Remote, namespace: str | None) -> str | None:
    """Where `/v1/watch` goes on from now: without it, a watch begins with all bundles.

    None if only the namespace is ours to see: its bundles come first, then.
    """
    channel = await (_if_allowed(remote, "/v1/channel") if namespace else ask(remote, "GET", "/v1/channel"))
    if not channel:
        return None
    partitions = sorted(channel["partitions"], key=lambda each: each["partition"])
    return f"{channel['generation'] or 0}:{'.'.join(str(each['next_offset']) for each in partitions)}"


async def explanation(remote: Remote, subject: str) -> str:
    """Why a bundle or a broker is as it is, as `loadmanager explain` prints it."""
    bundle = bundle_of(subject)
    found = await ask(remote, "GET", path_of(subject, bundle))
    with redirect_stdout(io.StringIO()) as printed:
        (show_broker if bundle is None else show_bundle)(found)
    return printed.getvalue()


async def unload(remote: Remote, bundle: Bundle, to: str | None) -> None:
    """Transfer the bundle, or take it from its owner."""
    path = f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range}/unload"
    await ask(remote, "PUT", path, query={"destinationBroker": to})


async def drain(remote: Remote, broker: str) -> None:
    """Have the broker move all its bundles away."""
    await ask(remote, "PUT", f"/v1/brokers/{segment(broker)}/drain")


async def undrain(remote: Remote, broker: str) -> None:
    """End the broker's drain, and that by a policy."""
    path = f"/v1/brokers/{segment(broker)}/drain"
    await ask(remote, "DELETE", path)
    await ask(remote, "DELETE", path, query={"by_policy": "true"})
