"""`loadmanager bundles`: lists bundles with state and owner, shows their records, moves them, cancels moves, and sets
policies of single bundles (`pin`, `exclude`, `quarantine` …).

`loadmanager splitting`: what brokers decided about splits and merges, and why a bundle is not split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import click

from loadmanager_api.cli.client import Query, ask, ask_all, run
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.names import BROKER, BUNDLE, NAMESPACE, segment
from loadmanager_api.cli.options import changes, cursor_option, shows, since_option
from loadmanager_api.cli.printing import age, echo, show, show_answer, show_pairs
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.requests import Request, commands, show_written
from statechannel.law.bundle import Bundle
from statechannel.law.transitions import State

_BUNDLE = click.argument("bundle", type=BUNDLE)
_REASON = click.option("--reason", metavar="TEXT", help="Reason, for the history.")


@click.command("release-quarantine")
@_BUNDLE
@_REASON
@changes
def release_quarantine(remote: Remote, bundle: Bundle, reason: str | None) -> None:
    """Let a bundle be assigned again, and all ranges that were quarantined with it."""
    from loadmanager.model.policies.effective import intersects  # takes longer to import than the command takes to run

    policies = run(ask_all(remote, "/v1/policies", {"kind": "bundle"}))["policies"]
    # the bundles of these documents may have been split or merged since
    quarantined = [Bundle.parse(each["name"]) for each in policies if each["policy"].get("quarantined")]
    written = [each for each in quarantined if intersects(each, bundle)] or [bundle]
    found = run(_release(remote, written, reason))
    whole = "" if written == [bundle] else f"; this ends the quarantine of {', '.join(map(str, written))}"
    show_written(remote, f"{bundle} may be assigned again{whole}", found[0])


async def _release(remote: Remote, bundles: Iterable[Bundle], reason: str | None) -> list[Any]:
    query, body = {"reason": reason}, {"quarantined": None}
    return [
        await ask(remote, "PATCH", f"/v1/policies/bundle/{each}", query=query, body=body, previews=True)
        for each in bundles
    ]


async def keep_drained(remote: Remote, broker: str, *, drain: bool, force: bool) -> dict[str, Any]:
    """Set or end a drain that outlives the broker's restarts."""
    query = {"force": force}
    path = f"/v1/policies/broker/{segment(broker)}"
    found: dict[str, Any] = await ask(remote, "PATCH", path, query=query, body={"drain": drain or None}, previews=True)
    return found


HISTORY_PAGE = 1_000


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=100, show_default=True, help="Number of records at most."
)
@since_option
@cursor_option
@shows
def history(remote: Remote, bundle: Bundle, limit: int, since_ms: int | None, cursor: str | None) -> None:
    """List every record that names BUNDLE, accepted or refused, newest first.

    The bundle may have been split or merged away since. The list goes back as far as the log: the last line says if
    older records were trimmed.
    """
    found = run(_collect_history(remote, bundle, limit, since_ms, cursor))
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


async def _collect_history(remote: Remote, bundle: Bundle, limit: int, since_ms: int | None, cursor: str | None) -> Any:
    path, found, entries = f"/v1/bundles/{bundle}/history", None, list[Any]()
    while found is None or (found["next"] is not None and len(entries) < limit):
        query = {"limit": str(min(HISTORY_PAGE, limit - len(entries))), "cursor": cursor, "since_ms": since_ms}
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


PAGE = 1_000


def owner_of(bundle: Mapping[str, Any]) -> str | None:
    """Its owner, whether that is dead, and where it is going; if it has none and can't get one, that it waits."""
    if bundle["owner"] is None:
        waits = bundle.get("waits")
        return None if not waits else "none (quarantined)" if waits.startswith("quarantined") else "none (waits)"
    dead = "" if bundle["owner_live"] else " (dead)"
    target = f" → {bundle['target']}" if bundle["target"] else ""
    return f"{bundle['owner']}{dead}{target}"


def _last(bundle: dict[str, Any]) -> str:
    return f"{bundle['last_action']} by {bundle['last_actor']}"


async def _collect(remote: Remote, query: Query, limit: int) -> tuple[list[dict[str, Any]], bool]:
    found: list[dict[str, Any]] = []
    after: str | None = None
    while len(found) < limit:
        page, after = await page_of(remote, query, after, min(PAGE, limit - len(found)))
        found += page
        if after is None:
            break
    return found, after is not None


async def page_of(
    remote: Remote, query: Query, after: str | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """The bundles of the query behind `after`, and what the next page is behind; None: this is the last one."""
    page = await ask(remote, "GET", "/v1/bundles", query={**query, "limit": str(limit), "cursor": after})
    return page["bundles"], page["next"]


def _show(remote: Remote, found: dict[str, Any]) -> None:
    names = ("bundle", "state", "owner", "incarnation", "owner_live", "target", "token", "revision", "partition")
    pairs: list[tuple[str, object]] = [(name.replace("_", " "), found[name]) for name in names]
    pairs.append(("last record", _last(found)))
    if found["cuts"]:
        pairs.append(("cuts", ", ".join(found["cuts"])))
    for name, value in (found["load"] or {}).items():
        if name != "sampled_ms":
            pairs.append((f"load {name}", value))
    show_pairs(remote, found, pairs)


_FORCE = click.option("--force", is_flag=True, help="Write the policy even if no broker satisfies it now.")
_POLICY = "/v1/policies/bundle/{bundle}"

ROWS = (
    Request("show", "GET /v1/bundles/{bundle}", "Show everything that the asked broker knows of one bundle.",
        (_BUNDLE,), view=_show),
    Request("move", "PUT /admin/v2/namespaces/{bundle}/unload?destinationBroker={destination}&force",
        "Move a bundle to a broker. It takes over while the present owner serves. `pin` also keeps the bundle there.",
        (_BUNDLE, click.argument("destination", metavar="HOST:PORT", type=BROKER), click.option("--force",
        is_flag=True, help="Move even if a policy forbids it; the record says so.")),
        done="{bundle} was moved to {destination}"),
    Request("cancel", "POST /v1/bundles/{bundle}/cancel",
        "Cancel the transfer or split of a bundle: it stays where it is, whole.", (_BUNDLE,),
        done="the transfer or split of {bundle} is cancelled"),
    Request("pin", f"PATCH {_POLICY}?force&reason",
        "Keep a bundle on a broker: move it there while that broker lives. Without HOST:PORT, keep it where it is.",
        (_BUNDLE, click.argument("broker", metavar="[HOST:PORT]", type=BROKER, required=False), _FORCE, _REASON),
        body=lambda given: {"pin": given["broker"] or "*"}, previews=True,
        done=lambda given: f"{given['bundle']} is pinned to {given['broker'] or 'where it is'}"),
    Request("unpin", f"PATCH {_POLICY}?reason", "Remove the pin of a bundle.", (_BUNDLE, _REASON),
        body=lambda _given: {"pin": None}, previews=True, done="{bundle} is no longer pinned"),
    Request("exclude", f"PATCH {_POLICY}?force&reason",
        "Keep a bundle off these brokers. The list replaces the former one; without brokers, nothing is excluded.",
        (_BUNDLE, click.argument("brokers", metavar="[HOST:PORT…]", type=BROKER, nargs=-1), _FORCE, _REASON),
        body=lambda given: {"exclude": list(given["brokers"]) or None}, previews=True,
        done=lambda given: f"{given['bundle']} is kept off {', '.join(given['brokers']) or 'no broker'}"),
    Request("quarantine", f"PATCH {_POLICY}?reason",
        "Assign a bundle to no broker any more. Its present owner keeps it: unload the bundle to take it away.",
        (_BUNDLE, click.option("--reason", metavar="TEXT", required=True,
        help="Reason; lookups of the bundle answer with it.")), body=lambda given: {"quarantined": given["reason"]},
        previews=True, confirm="This quarantines {bundle}: no client can look it up once its owner has left it",
        done="{bundle} is quarantined: {reason}"),
)  # fmt: skip


@click.group(cls=Group, commands=commands(ROWS))
def bundles() -> None:
    """List, move, pin, exclude and quarantine bundles; cancel moves and splits."""


bundles.add_command(bundles.commands["move"], "transfer")
bundles.add_command(history)
bundles.add_command(release_quarantine)


@bundles.command("list")
@click.option("-n", "--namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE, help="Only this namespace.")
@click.option(
    "-s",
    "--state",
    metavar="STATE",
    type=click.Choice([state.value for state in State]),
    help=f"Only this state: {', '.join(State)}.",
)
@click.option("--owner", metavar="HOST:PORT", type=BROKER, help="Only bundles of this broker.")
@click.option(
    "--order",
    type=click.Choice(["name", "load"]),
    default="name",
    help="load: only bundles of known load, those with the most messages first.  [default: name]",
)
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=PAGE, show_default=True, help="Number of bundles at most."
)
@shows
def list_(remote: Remote, limit: int, **query: str | None) -> None:
    """List bundles. The rate of messages is known of each broker's hottest ones."""
    found, more = run(_collect(remote, query, limit))
    rows = [
        (b["bundle"], b["state"], owner_of(b), b["rate_msg_s"], b["token"], b["incarnation"], b["revision"], _last(b))
        for b in found
    ]
    columns = ("bundle", "state", "owner", "msg/s", "token", "incarnation", "revision", "last record")
    show(remote, found, columns, rows, empty="no bundles", wide=4)
    for bundle in found if remote.for_people else ():
        if bundle["waits"]:
            echo(f"{bundle['bundle']} waits: {bundle['waits']}", err=True)
    if more:
        echo(f"these are the first {limit}; there are more: give a greater --limit", err=True)


def _show_splitting(remote: Remote, found: dict[str, Any]) -> None:
    if not remote.for_people:
        show_answer(remote, found)
        return
    looked = found["idle"] or f"{found['looks']} looks, the last one {age(found['looked_ms'])} ago"
    pairs: list[tuple[str, object]] = [("broker", found["broker"]), ("looked", looked)]
    pairs += [("not split", _counted(found["not_split"])), ("not merged", _counted(found["not_merged"]))]
    show_pairs(remote, found, pairs)
    for title, rows in (("above its limits, not split", found["above_limits"]), ("suspects", found["suspects"])):
        if rows:
            echo(f"\n{title}:")
            show(remote, rows, ("bundle", "why"), [line for row in rows for line in _lines(row)])
    echo("\nevents, newest first:")
    events = [(age(e["at_ms"]), e["what"], e["bundle"], e["why"]) for e in found["events"]]
    show(remote, found["events"], ("ago", "what", "bundle", "why"), events, empty="nothing yet")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {rule}" for rule, count in sorted(counts.items(), key=lambda each: -each[1])) or "-"


def _lines(row: dict[str, Any]) -> list[tuple[str, str]]:
    if "rule" in row:
        return [(row["bundle"], f"{row['rule']}: {row['detail']}")]
    return [(row["bundle"], row["why"]), *(("", each) for each in row["evidence"])]


SPLITTING_ROWS = (
    Request("show", "GET /v1/splitting", "Show the asked broker's last look at its own bundles, and recent events.",
        view=_show_splitting),
    Request("why", "GET /v1/splitting/{bundle}",
        "Show why a bundle is not split, and not merged. Ask its owner, with --admin-url.", (_BUNDLE,),
        view=lambda remote,
        found: show_pairs(remote, found, [(name, found[name]) for name in ("bundle", "split", "merge")])),
)  # fmt: skip


@click.group(cls=Group, commands=commands(SPLITTING_ROWS))
def splitting() -> None:
    """Show splits, merges and quarantines, and why others did not happen."""
