"""`loadmanager channel`: the channel as one broker has read it, and how far all brokers have read.

`channel watch` shows the table and its changes as lines, resumed whenever the connection breaks.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import click

from loadmanager.client.redirection import AnotherCluster
from loadmanager.errors import LoadManagerError
from loadmanager_api.cli.client import (
    CONNECT_TIMEOUT_S,
    Failed,
    NotNow,
    admin_headers,
    ask,
    ask_all,
    distrusted,
    given_credentials,
    keep_to,
    not_answered,
    run,
    unreachable,
)
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.names import NAMESPACE
from loadmanager_api.cli.options import asks_a_broker, shows, since_option
from loadmanager_api.cli.printing import age, echo, one_line, show, show_pairs
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.requests import Request, commands
from loadmanager_api.cli.stores import agree, export_command, import_command, verify

BROKERS_AT_ONCE = 16
MEMBER_TIMEOUT_S = 10.0
"""A broker waits up to 3 s for the log; one that does not answer must not hide the others' answers."""

_UNITS = ("B", "KiB", "MiB", "GiB")


@click.command()
@click.option(
    "--digest", is_flag=True, help="Add a digest of each partition; replicas at equal offsets have equal digests."
)
@click.option("-a", "--all", "everybody", is_flag=True, help="Also show how far every other broker has read.")
@shows
def status(remote: Remote, digest: bool, everybody: bool) -> None:
    """Show where the log begins and ends, its snapshots and their writers, and how far the asked broker has read.

    Also show what the broker has refused and skipped since its start.
    """
    found, others = run(_ask(remote, digest, everybody))
    answer = {**found, "brokers": others} if everybody else found
    show_pairs(remote, answer, _pairs(found))
    if not remote.for_people:
        return
    echo()
    partitions: list[dict[str, Any]] = found["partitions"]
    several = len(partitions) > 1
    rows = [_log_row(partition, digest) for partition in partitions]
    show(
        remote,
        found,
        (*_OF_LOG, "digest") if digest else _OF_LOG,
        [*rows, *([_log_total(partitions, digest)] * several)],
    )
    echo()
    rows = [_snapshots_row(partition) for partition in partitions]
    show(remote, found, _OF_SNAPSHOTS, [*rows, *([_snapshots_total(partitions)] * several)])
    if everybody:
        echo()
        show(remote, others, ("broker", "applied", "lag", "most behind in", "refused", "reloads", "state"), [
            _broker_row(broker) for broker in others
        ])  # fmt: skip


async def _ask(remote: Remote, digest: bool, everybody: bool) -> tuple[Any, list[dict[str, Any]]]:
    found = await ask(remote, "GET", "/v1/channel", query={"digest": digest})
    if not everybody:
        return found, []
    places = asyncio.Semaphore(BROKERS_AT_ONCE)
    members = await ask_all(remote, "/v1/brokers")
    return found, await asyncio.gather(*(_member(remote, member, places) for member in members))


async def _member(remote: Remote, member: dict[str, Any], places: asyncio.Semaphore) -> dict[str, Any]:
    """A broker's status, or why it gives none."""
    name = {"broker": member["broker"], "incarnation": member["incarnation"]}
    if not member["admin_url"]:
        return {**name, "error": "registered no admin URL" if member["registered"] else "is not registered"}
    async with places:
        try:
            async with asyncio.timeout(MEMBER_TIMEOUT_S):
                found = await ask(remote.at(member["admin_url"]), "GET", "/v1/channel")
        except TimeoutError:
            return {**name, "error": f"did not answer within {MEMBER_TIMEOUT_S:g} s"}
        except Failed as error:
            return {**name, "error": error.message}
    return {**name, "error": None, "channel": found}


def _broker_row(broker: dict[str, Any]) -> tuple[object, ...]:
    name = f"{broker['broker']}#{broker['incarnation']}"
    if broker["error"] is not None:
        return (name, None, None, None, None, None, broker["error"])
    found = broker["channel"]
    partitions = found["partitions"]
    behind = max(partitions, key=lambda p: p["lag"] or 0)
    where = f"partition {behind['partition']} ({behind['lag']})" if behind["lag"] else None
    return (
        name,
        sum(p["next_offset"] for p in partitions),
        _sum(partitions, "lag"),
        where,
        sum(found["refused"].values()),
        found["reloads"],
        found["stopped_by"] or found["log_problem"] or "reads on",
    )


_OF_LOG = ("partition", "begin", "end", "applied", "lag", "epoch", "leader")
_OF_SNAPSHOTS = ("partition", "owner", "snapshot at", "age", "size", "bundles", "kept", "records since")


def _log_row(partition: dict[str, Any], digest: bool) -> tuple[object, ...]:
    names = ("partition", "begin", "end", "next_offset", "lag", "epoch", "leader", *(["digest"] if digest else []))
    return tuple(partition[name] for name in names)


def _log_total(partitions: Sequence[dict[str, Any]], digest: bool) -> tuple[object, ...]:
    sums = (_sum(partitions, name) for name in ("begin", "end", "next_offset", "lag"))
    return ("all", *sums, None, None, *([None] if digest else []))


def _snapshots_row(partition: dict[str, Any]) -> tuple[object, ...]:
    snapshots: list[dict[str, Any]] | None = partition["snapshots"]
    newest = snapshots[0] if snapshots else None
    return (
        partition["partition"],
        partition["owner"],
        newest and newest["next_offset"],
        newest and age(newest["at_ms"]),
        newest and size(newest["size_bytes"]),
        newest and newest["bundles"],
        len(snapshots) if snapshots is not None else None,
        partition["since_snapshot"],
    )


def _snapshots_total(partitions: Sequence[dict[str, Any]]) -> tuple[object, ...]:
    kept = [snapshot for p in partitions for snapshot in p["snapshots"] or ()]
    newest = [p["snapshots"][0] for p in partitions if p["snapshots"]]
    return (
        "all",
        None,
        None,
        None,
        size(sum(snapshot["size_bytes"] for snapshot in newest)),
        sum(snapshot["bundles"] for snapshot in newest),
        len(kept),
        _sum(partitions, "since_snapshot"),
    )


def _sum(partitions: Sequence[dict[str, Any]], name: str) -> int | None:
    known = [p[name] for p in partitions if p[name] is not None]
    return sum(known) if known else None


def size(size_bytes: float) -> str:
    """A size in its natural unit."""
    for unit in _UNITS[:-1]:
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} {_UNITS[-1]}"


def _agreement_pairs(name: str, agreement: dict[str, Any] | None) -> list[tuple[str, object]]:
    if agreement is None:
        return [] if name != "agreed" else [(name, "nothing yet")]
    values = f"proof_validity_s {agreement['proof_validity_s']:g}, clock_drift {agreement['clock_drift']:g}"
    margin = f"margin_s {agreement['margin_s']:g}, {agreement['partitions']} partitions"
    return [(f"{name}: root", agreement["root"]), (name, f"{values}, {margin}")]


USUAL = frozenset({"stale", "no-bundle", "not-unassigned", "foreign-cluster", "namespace-exists"})
"""Normal reasons: another writer was first, with a change, or with the record that begins the log."""


def told_refusals(refused: dict[str, int]) -> str:
    """Refusals by reason; normal ones are marked as such."""
    told = ", ".join(f"{count} {reason}" for reason, count in refused.items())
    if not told:
        return "none"
    return f"{told}: normal, another broker was first" if refused.keys() <= USUAL else told


def _pairs(found: dict[str, Any]) -> list[tuple[str, object]]:
    states = ", ".join(f"{count} {state}" for state, count in found["bundles"].items() if count)
    kept = sum((p["end"] or 0) - (p["begin"] or 0) for p in found["partitions"] if p["end"] is not None)
    pairs: list[tuple[str, object]] = [
        ("cluster", found["cluster"]),
        ("log", f"generation {found['generation']}, {kept} records kept, {len(found['partitions'])} partitions"),
        *_agreement_pairs("agreed", found.get("agreement")),
        *_agreement_pairs("about to be agreed", found.get("agreement_following")),
        ("broker", found["broker"]),
        ("leader", found["leader"]),
        ("coordination", found["connection"]),
        ("safe mode", found["safe_mode"] or "no"),
        ("namespaces", found["namespaces"]),
        ("bundles", states or "none"),
        ("accepted", found["accepted"]),
        ("refused", told_refusals(found["refused"])),
        ("skipped", found["skipped"]),
        ("reloads", found["reloads"]),
        ("in flight", found["publishes_in_flight"]),
        ("readers", ", ".join(found["readers"]) or "none"),
    ]
    pairs += [(f"skipped {s['partition']}:{s['offset']}", s["detail"]) for s in found["skipped_entries"][-5:]]
    for name, field in (("log problem", "log_problem"), ("last error", "last_error"), ("stopped by", "stopped_by")):
        if found[field]:
            pairs.append((name, found[field]))
    return pairs


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
                        failures = 0  # do not retry forever with a broker that ends each connection after its greeting
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
        async with (
            credentials.session(timeout=timeout, read_bufsize=MAX_LINE_BYTES) as session,
            session.get(
                remote.admin_url + "/v1/watch",
                params=query,
                headers=await admin_headers(remote, session, credentials, remote.admin_url),
            ) as answer,
        ):
            keep_to(remote, answer.headers, remote.admin_url)
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
    except AnotherCluster as error:
        refused = not_answered(remote, {remote.admin_url: error})
        if len(remote.admin_urls) == 1:
            raise refused from None
        remote.admin_urls.append(remote.admin_urls.pop(0))
        raise NotNow(refused.message) from None
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


_READER = click.argument("name")
_AT = "/v1/channel/readers"

ROWS = (
    Request("list", f"GET {_AT}", "List readers, and how far each has read.",
        (click.option("--prefix", metavar="TEXT", help="Only readers whose name begins with TEXT."), since_option),
        pages=True, part="readers", columns={"reader": "name", "positions": lambda each: " ".join(map(str,
        each["positions"])), "registered": lambda each: age(each["registered_ms"])}, empty="no readers"),
    Request("add", f"PUT {_AT}/{{name}}", "Register a reader, or renew its registration and move it forward.\n\n"
        "POSITIONS are the offsets that the reader needs next, one for each partition.  [default: the log's begin]",
        (_READER, click.argument("positions", type=click.IntRange(0), nargs=-1)),
        body=lambda given: {"positions": list(given["positions"]) or None},
        done=lambda given: f"{given['name']} is registered at {' '.join(map(str, given['positions']))}"),
    Request("remove", f"DELETE {_AT}/{{reader}}", "Remove a reader.", (click.argument("reader", metavar="NAME"),),
        confirm="This removes the reader {reader}: what it has not read may be trimmed", done="{reader} is removed"),
)  # fmt: skip


@click.group(cls=Group)
def channel() -> None:
    """Inspect the channel as one broker has read it; back it up, restore it."""


channel.add_command(agree)
channel.add_command(export_command)
channel.add_command(import_command)


@channel.group(cls=Group, commands=commands(ROWS))
def readers() -> None:
    """Manage readers of the channel's log; brokers trim nothing that a reader still needs."""


channel.add_command(status)
channel.add_command(verify)
channel.add_command(watch)
