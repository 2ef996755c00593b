"""`loadmanager bundles history`: every record about one bundle, newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.names import BUNDLE
from loadmanager_api.cli.options import cursor_option, shows, since_option, since_query
from loadmanager_api.cli.printing import show
from loadmanager_api.cli.remote import Remote
from statechannel.law.bundle import Bundle

PAGE = 1_000


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=100, show_default=True, help="Number of records at most."
)
@since_option
@cursor_option
@shows
def history(remote: Remote, bundle: Bundle, limit: int, since: int | None, cursor: str | None) -> None:
    """List every record that names BUNDLE, accepted or refused, newest first.

    The bundle may have been split or merged away since. The list goes back as far as the log: the last line says if
    older records were trimmed.
    """
    found = run(_collect(remote, bundle, limit, since, cursor))
    if remote.for_people and found["entries"]:
        present = f"is {found['state']}" if found["exists"] else "is gone"
        echo(f"{bundle} {present}; newest first, partition {found['partition']}\n")
    columns = ("offset", "time", "action", "by", "state", "owner", "why")
    show(remote, found, columns, [_row(entry) for entry in found["entries"]], empty="no records")
    if remote.for_people:
        if found["next"] is not None:
            echo(f"there are older records: give --cursor {found['next']}, or a greater --limit", err=True)
        if found["note"]:
            echo(found["note"], err=True)


async def _collect(remote: Remote, bundle: Bundle, limit: int, since: int | None, cursor: str | None) -> Any:
    path, found, entries = f"/v1/bundles/{bundle}/history", None, list[Any]()
    while found is None or (found["next"] is not None and len(entries) < limit):
        query = {"limit": str(min(PAGE, limit - len(entries))), "cursor": cursor, **since_query(since)}
        found = await ask(remote, "GET", path, query=query)
        entries += found["entries"]
        cursor = found["next"]
    return {**found, "entries": entries}


def _row(entry: dict[str, Any]) -> tuple[object, ...]:
    return (
        entry["offset"],
        _time(entry),
        entry["action"] if entry["accepted"] else f"{entry['action']} (refused)",
        entry["actor"] if entry["role"] == "broker" else f"{entry['actor']} as {entry['role']}",
        _step(entry),
        _owner(entry),
        _why(entry),
    )


def _time(entry: dict[str, Any]) -> str:
    """The log's time, with the author's where the two are far apart."""
    taken = datetime.fromtimestamp(entry["appended_ms"] / 1000).astimezone()
    apart_s = (entry["written_ms"] - entry["appended_ms"]) / 1000
    shown = taken.strftime("%Y-%m-%d %H:%M:%S.") + f"{entry['appended_ms'] % 1000:03d}"
    return shown if abs(apart_s) < 60 or not entry["written_ms"] else f"{shown} (its author: {apart_s:+.0f} s)"


def _step(entry: dict[str, Any]) -> str:
    if not entry["accepted"]:
        return entry["before"] or "-"
    return f"{entry['before'] or 'none'} → {entry['after'] or 'gone'}"


def _owner(entry: dict[str, Any]) -> str | None:
    target = entry["target"] or (entry["to"] if not entry["accepted"] else None)
    return f"{entry['owner'] or '-'} → {target}" if target else entry["owner"]


def _why(entry: dict[str, Any]) -> str:
    parts: list[str] = []
    if not entry["accepted"]:
        copied = entry["copy_of"]
        parts.append(f"{entry['refused']}: {entry['detail']}" if copied is None else f"a copy of {copied}")
        if entry["winner"] is not None and copied is None:
            winner = entry["winner"]
            parts.append(f"{winner['action']} of {winner['actor']} at {winner['offset']} won")
    parts += [text for text in (entry["reason"], f"cause {entry['cause']}" if entry["cause"] else "") if text]
    if entry["parents"]:
        parts.append(f"from {_ranges(entry['parents'])}")
    if entry["children"]:
        parts.append(f"into {_ranges(entry['children'])}")
    elif entry["boundaries"] and not entry["parents"]:
        parts.append(f"at {_listed(entry['boundaries'])}")
    return "; ".join(parts)


def _ranges(bundles: list[str]) -> str:
    return _listed([bundle.rpartition("/")[2] for bundle in bundles])


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" … ({len(names)})" if len(names) > most else "")
