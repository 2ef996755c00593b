"""`loadmanager channel watch`: the table and its changes as lines, resumed whenever the connection breaks."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import click

from loadmanager.errors import LoadManagerError
from loadmanager_api.cli.client import (
    CONNECT_TIMEOUT_S,
    Failed,
    NotNow,
    distrusted,
    given_credentials,
    run,
    unreachable,
)
from loadmanager_api.cli.echoing import echo, one_line
from loadmanager_api.cli.names import NAMESPACE
from loadmanager_api.cli.options import asks_a_broker
from loadmanager_api.cli.remote import Remote

SILENCE_S = 35.0
"""A broker sends something every 10 s: after this silence it is gone."""

AGAIN_S = 1.0
ATTEMPTS = 30
MAX_LINE_BYTES = 16 << 20

Event = tuple[str, str | None, Any]
"""Its kind, the revision that it completes, and its data."""


@click.command()
@click.option("-n", "--namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE, help="Only this namespace.")
@click.option("--since", metavar="REVISION", help="Continue after this revision, without all bundles first.")
@click.option("--limit", metavar="N", type=click.IntRange(1), help="Number of lines at most.")
@asks_a_broker
def watch(remote: Remote, namespace: str | None, since: str | None, limit: int | None) -> None:
    """Print all bundles, then every change, one line each, until you interrupt the command.

    With -o json each line is an event as the broker sends it, with its revision as `id`. To continue later, give the
    last revision as --since.
    """
    try:
        run(_print(remote, namespace, since, limit))
    except KeyboardInterrupt:
        return


async def _print(remote: Remote, namespace: str | None, since: str | None, limit: int | None) -> None:
    left = limit
    async with aclosing(events(remote, namespace, since, lambda why: echo(why, err=True))) as found:
        async for kind, revision, data in found:
            for line in _lines(remote, kind, revision, data):
                echo(line)
                left = None if left is None else left - 1
                if left == 0:
                    return


async def events(
    remote: Remote, namespace: str | None, since: str | None, tell: Callable[[str], None]
) -> AsyncGenerator[Event, None]:
    """Events without end, over as many connections as needed; each break is told. Raises Failed."""
    failures = 0
    while True:
        try:
            async with aclosing(_connection(remote, namespace, since)) as found:
                async for event in found:
                    if event[1] or event[0] not in ("", "end"):
                        failures = 0  # do not retry for ever with a broker that ends each connection after its greeting
                    since = event[1] or since
                    if event[0]:
                        yield event
            why = "the connection was closed"
        except NotNow as error:
            why = str(error)
        failures += 1
        if failures > ATTEMPTS:
            raise NotNow(why if since is None else f"{why}; continue with --since {since}, at any broker")
        tell(f"{why}; trying again")
        await asyncio.sleep(AGAIN_S)


async def _connection(remote: Remote, namespace: str | None, since: str | None) -> AsyncGenerator[Event, None]:
    """Events of one connection. Raises Failed, NotNow."""
    import aiohttp  # takes longer to import than many commands take to run

    query = {name: value for name, value in (("namespace", namespace), ("since", since)) if value is not None}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_S)
    try:
        credentials = given_credentials(remote)
        headers = credentials.headers(remote.admin_url)
        async with (
            credentials.session(timeout=timeout, read_bufsize=MAX_LINE_BYTES) as session,
            session.get(remote.admin_url + "/v1/watch", params=query, headers=headers) as answer,
        ):
            if answer.status != 200:
                raise _refused(answer.status, await answer.text())
            lines: list[str] = []
            try:
                async for line in answer.content:
                    lines.append(line.decode().rstrip("\r\n"))
                    if not lines[-1]:
                        yield parse(lines)
                        lines = []
            finally:
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()  # else TLS would say goodbye on a loop that has ended
    except LoadManagerError as error:  # of the credentials
        raise Failed(str(error)) from None
    except ssl.CertificateError as error:
        raise Failed(distrusted(remote.admin_url, error)) from None
    except aiohttp.InvalidURL:
        raise click.UsageError(f"{remote.admin_url!r} is not a URL; write --admin-url http://host:port") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        failed = remote.admin_url
        remote.admin_urls.append(remote.admin_urls.pop(0))  # the next connection is another broker's
        raise NotNow(unreachable({failed: error})) from None


def _refused(status: int, text: str) -> Failed:
    try:
        reason = str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        reason = text.strip() or f"HTTP status {status}"
    return (NotNow if status == 503 else Failed)(one_line(reason))


def parse(lines: list[str]) -> Event:
    """One server-sent event; one that only moves the revision on has no kind."""
    fields = dict(line.split(": ", 1) for line in lines if ": " in line and not line.startswith(":"))
    data = json.loads(fields["data"]) if "data" in fields else None
    return fields.get("event", ""), fields.get("id"), data


def _lines(remote: Remote, kind: str, revision: str | None, data: Any) -> Iterator[str]:
    if not remote.for_people:
        yield json.dumps({"event": kind, "id": revision, "data": data})
        return
    match kind:
        case "snapshot":
            for bundle in data["bundles"]:
                yield f"is        {_shown(bundle)}"
        case "snapshot-end":
            yield f"revision  {data['revision']}"
        case "change":
            yield from _change(data)
        case "reload":
            yield f"reload    partition {data['partition']}: this broker fell behind; its bundles follow again"
        case "end":
            yield f"end       {data['reason']}; resume: {data['resume'] or 'anew'}"
        case _:
            return


def _change(data: Any) -> Iterator[str]:
    as_role = "" if data["role"] == "broker" else f" as {data['role']}"
    why = f" ({data['reason']})" if data["reason"] else ""
    head = f"{data['partition']}:{data['offset']}".ljust(9)
    told = f"{data['action']} by {data['actor']}{as_role}{why}"
    if not data["bundles"]:
        yield f"{head} {told}"
    for step in data["bundles"]:
        before, after = step["before"], step["after"]
        where = _shown(after) if after is not None else f"{before['bundle']}  gone"
        yield f"{head} {where}  {told}"


def _shown(bundle: Any) -> str:
    owner = f"{bundle['owner']}#{bundle['incarnation']}" if bundle["owner"] else "-"
    target = f" → {bundle['target']}" if bundle["target"] else ""
    return f"{bundle['bundle']}  {bundle['state']}  {owner}{target}"
