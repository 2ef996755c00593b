"""`loadmanager channel`: the bundle-state channel, as one broker has read it."""

from __future__ import annotations

from typing import Any

import click

from api.cli.client import ask, run
from api.cli.options import Remote, asks_a_broker
from api.cli.printing import show, show_pairs


@click.group()
def channel() -> None:
    """The bundle-state channel of one broker."""


@channel.command()
@click.option("--digest", is_flag=True, help="With a digest of each partition: equal on all replicas at equal offsets.")
@asks_a_broker
def status(remote: Remote, digest: bool) -> None:
    """How far the asked broker has read, what it refused and skipped, and who leads."""
    found = run(ask(remote, "GET", "/v1/channel", query={"digest": "true" if digest else None}))
    show_pairs(remote, found, _pairs(found))
    if remote.output == "table":
        columns = ("partition", "next offset", "epoch", "leader", *(("digest",) if digest else ()))
        rows = [(p["partition"], p["next_offset"], p["epoch"], p["leader"], p["digest"]) for p in found["partitions"]]
        click.echo()
        show(remote, found, columns, [row[: len(columns)] for row in rows])


def _pairs(found: dict[str, Any]) -> list[tuple[str, object]]:
    states = ", ".join(f"{count} {state}" for state, count in found["bundles"].items() if count)
    refused = ", ".join(f"{count} {reason}" for reason, count in found["refused"].items())
    pairs: list[tuple[str, object]] = [
        ("cluster", found["cluster"]),
        ("broker", found["broker"]),
        ("leader", found["leader"]),
        ("coordination", found["connection"]),
        ("safe mode", found["safe_mode"] or "no"),
        ("namespaces", found["namespaces"]),
        ("bundles", states),
        ("accepted", found["accepted"]),
        ("refused", refused or 0),
        ("skipped", found["skipped"]),
        ("in flight", found["publishes_in_flight"]),
    ]
    pairs += [(f"skipped {s['partition']}:{s['offset']}", s["detail"]) for s in found["skipped_entries"][-5:]]
    if found["last_error"]:
        pairs.append(("last error", found["last_error"]))
    if found["stopped_by"]:
        pairs.append(("stopped by", found["stopped_by"]))
    return pairs
