"""`loadmanager advice`: what the load history advises; approve it, reject it, have it withdrawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.names import segment
from loadmanager_api.cli.options import Remote, asks_a_broker
from loadmanager_api.cli.printing import age, done, show, show_pairs

FOR_PEOPLE = ("kind", "title")
"""What `history advise` prints besides the advice itself."""

reason_option = click.option("--reason", default="", metavar="TEXT", help="Why; kept.")
_the_advice = click.argument("advice_id", metavar="ADVICE")


@click.group()
def advice() -> None:
    """What the load history advises: list, show, approve, reject, withdraw.

    The leader applies what is approved, measures what comes of it, and withdraws what did harm. docs/advice.md.
    """


@advice.command("list")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True)
@asks_a_broker
def list_(remote: Remote, limit: int) -> None:
    """Advice, of the newest data first."""
    found = run(ask(remote, "GET", "/v1/advice", query={"limit": str(limit)}))
    rows = [
        (a["id"], a["state"], a["what"], age(a["data_to_ms"]), ", ".join(a["may"]), a["waiting"] or a["reason"])
        for a in found
    ]
    columns = ("advice", "state", "what", "data of", "you may", "why")
    show(remote, found, columns, rows, empty="no advice; `loadmanager history advise` makes some")


@advice.command("show")
@_the_advice
@asks_a_broker
def show_(remote: Remote, advice_id: str) -> None:
    """Where it comes from, what it promises, and what has become of it."""
    found = run(ask(remote, "GET", _path(advice_id)))
    expected, origin, effect = found["expected"], found["provenance"], found["effect"]
    promised = f"{expected['measure']} {expected['before']:.3g} → {expected['after']:.3g}"
    tables = ", ".join(f"{name} v{version}" for name, version in origin["tables"].items())
    pairs: list[tuple[str, object]] = [
        ("advice", found["id"]),
        ("state", found["state"] + (f": {found['waiting']}" if found["waiting"] else "")),
        ("what", found["what"]),
        ("reason", found["reason"]),
        ("promises", f"{promised}, better by {expected['low']:.3g} to {expected['high']:.3g} (95 %)"),
        ("made by", f"{origin['job']} {origin['job_version']}, {origin['method']}"),
        (
            "of data",
            f"of {origin['cluster']}, from {age(origin['data_from_ms'])} ago to {age(origin['data_to_ms'])} ago",
        ),
        ("you may", ", ".join(found["may"]) or "nothing more"),
    ]
    if tables:
        pairs.insert(7, ("tables", tables))
    if effect:
        pairs += [("effect", effect["text"]), ("measured", f"{effect['measured_from']} to {effect['measured_to']}")]
    show_pairs(remote, found, pairs)
    if remote.output == "table" and found["steps"]:
        echo()
        rows = [(s["state"], age(s["at_ms"]), s["author"], s["reason"]) for s in found["steps"]]
        show(remote, found, ("step", "age", "by", "why"), rows)


@advice.command(short_help="The leader may apply it.")
@_the_advice
@reason_option
@asks_a_broker
def approve(remote: Remote, advice_id: str, reason: str) -> None:
    """The leader may apply it, within its bounds; it measures what comes of it, and withdraws what did harm."""
    _say(remote, advice_id, "approve", reason)


@advice.command(short_help="It may not be applied.")
@_the_advice
@reason_option
@asks_a_broker
def reject(remote: Remote, advice_id: str, reason: str) -> None:
    """It may not be applied."""
    _say(remote, advice_id, "reject", reason)


@advice.command(short_help="Undo what was applied.")
@_the_advice
@reason_option
@asks_a_broker
def withdraw(remote: Remote, advice_id: str, reason: str) -> None:
    """Undo what was applied, where nobody else has changed it since."""
    _say(remote, advice_id, "withdraw", reason)


@advice.command(short_help="Propose advice from a file.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@asks_a_broker
def publish(remote: Remote, file: Path) -> None:
    """Propose the advice of a JSON file (`-`: standard input), as `history advise -o json` prints it."""
    try:
        with click.open_file(str(file), encoding="utf-8") as opened:
            wishes = json.load(opened)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"{file} is no JSON that can be read: {error}") from None
    if isinstance(wishes, dict) and "advice" in wishes:
        wishes = wishes["advice"]
    for wish in wishes if isinstance(wishes, list) else [wishes]:
        body = {key: value for key, value in wish.items() if key not in FOR_PEOPLE} if isinstance(wish, dict) else wish
        _told(remote, run(ask(remote, "POST", "/v1/advice", body=body)))


def _say(remote: Remote, advice_id: str, verdict: str, reason: str) -> None:
    _told(remote, run(ask(remote, "POST", f"{_path(advice_id)}/{verdict}", body={"reason": reason})))


def _told(remote: Remote, found: dict[str, Any]) -> None:
    done(remote, f"advice {found['id']} is {found['state']}: {found['what']}", **found)


def _path(advice_id: str) -> str:
    return f"/v1/advice/{segment(advice_id)}"
