"""`loadmanager channel status`: the channel as one broker has read it, and how far all brokers have read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from loadmanager_api.cli.client import Failed, ask, ask_all, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.options import shows
from loadmanager_api.cli.printing import age, show, show_pairs
from loadmanager_api.cli.remote import Remote

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
    found = await ask(remote, "GET", "/v1/channel", query={"digest": "true" if digest else None})
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
"""Normal reasons: somebody else was first, with a change, or with the record that begins the log."""


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
