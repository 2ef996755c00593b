"""`loadmanager plans`: changes that are looked at before they are made, advice of the load history too. `loadmanager
unload`: everything of a namespace or broker, in waves, which is a plan as well.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click

from loadmanager_api.cli.client import Failed, ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.names import BROKER, NAMESPACE, segment
from loadmanager_api.cli.options import Remote, asks_a_broker
from loadmanager_api.cli.printing import age, done, hanging, show, show_pairs

POLL_S = 0.3
OVER = (
    "done",
    "failed",
    "cancelled",
    "rejected",
    "expired",
    "superseded",
    "refused",
    "measuring",
    "undone",
    "verified",
)
"""A run is over then; that a promised effect is still measured is no part of it."""
SHOWN_MOVES = 50
FOR_PEOPLE = ("kind", "title")
"""What `history advise` prints besides the advice itself."""

author_option = click.option("--author", default="", metavar="NAME", help="Who asks; kept.  [default: you]")
reason_option = click.option("--reason", default="", metavar="TEXT", help="Why; kept.")


@click.group()
def plans() -> None:
    """Changes that are looked at before they are made: propose, approve, run, verify, undo.

    The leader runs advice of the load history by itself once it is approved, measures what comes of it, and undoes what
    did harm. docs/plans.md.
    """


@plans.command(short_help="What the strategy would do now, to be approved.")
@click.option("--strategy", metavar="NAME", help="Another than the cluster's, for this plan.")
@click.option("--tolerance", metavar="TOLERANCE", help="tight, default, loose, or a fraction; for this plan.")
@author_option
@reason_option
@asks_a_broker
def propose(remote: Remote, strategy: str | None, tolerance: str | None, author: str, reason: str) -> None:
    """What the strategy would do now, to be approved."""
    body = {"strategy": strategy, "tolerance": _tolerance(tolerance), "author": author, "reason": reason}
    body = {name: value for name, value in body.items() if value is not None}
    _show(remote, run(ask(remote, "POST", "/v1/plans", body=body)), all_moves=False)


def _tolerance(text: str | None) -> str | float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


@plans.command("list")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True)
@click.option("--kind", type=click.Choice(["balance", "unload", "undo", "advice"]), help="Only these.")
@asks_a_broker
def list_(remote: Remote, limit: int, kind: str | None) -> None:
    """Plans, the newest first."""
    query = {"limit": str(limit)} | ({} if kind is None else {"kind": kind})
    found = run(ask(remote, "GET", "/v1/plans", query=query))
    rows = [
        (p["id"], p["kind"], p["state"], p["what"], _counts(p), age(p["proposed_ms"]), p["author"], ", ".join(p["may"]),
         p["waiting"] or p["reason"])
        for p in found
    ]  # fmt: skip
    columns = ("plan", "kind", "state", "what", "of it", "age", "by", "you may", "why")
    show(remote, found, columns, rows, empty="no plans; `loadmanager history advise` makes some")


@plans.command(short_help="Propose advice from a file.")
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
        _told(remote, run(ask(remote, "POST", "/v1/plans/advice", body=body)))


@plans.command("show")
@click.argument("plan_id", metavar="PLAN")
@click.option("--all", "all_moves", is_flag=True, help=f"More than {SHOWN_MOVES} moves too.")
@asks_a_broker
def show_(remote: Remote, plan_id: str, all_moves: bool) -> None:
    """A plan: its moves, what has become of them, and what can be done with it now."""
    _show(remote, run(ask(remote, "GET", _path(plan_id))), all_moves=all_moves)


@plans.command(short_help="It may run.")
@click.argument("plan_id", metavar="PLAN")
@click.option("--run", "and_run", is_flag=True, help="Let it run at once.")
@author_option
@reason_option
@asks_a_broker
def approve(remote: Remote, plan_id: str, and_run: bool, author: str, reason: str) -> None:
    """It may run; refused if somebody else has decided on it meanwhile."""
    found = _act(remote, plan_id, "approve", author, reason)
    if and_run and not found["advice"]:  # which the leader runs by itself
        found = _act(remote, plan_id, "run", author, reason)
    _told(remote, found)


@plans.command("run", short_help="Have the leader make its moves.")
@click.argument("plan_id", metavar="PLAN")
@click.option("--wait", is_flag=True, help="Until it is over; fails if a move failed.")
@author_option
@reason_option
@asks_a_broker
def run_(remote: Remote, plan_id: str, wait: bool, author: str, reason: str) -> None:
    """Have the leader make its moves, under the limits. Bundles that have moved on since are left alone."""
    found = _act(remote, plan_id, "run", author, reason)
    _told(remote, run(_wait(remote, found)) if wait else found)


@plans.command(short_help="It may not run.")
@click.argument("plan_id", metavar="PLAN")
@author_option
@reason_option
@asks_a_broker
def reject(remote: Remote, plan_id: str, author: str, reason: str) -> None:
    """It may not run."""
    _told(remote, _act(remote, plan_id, "reject", author, reason))


@plans.command(short_help="Begin no more of its moves.")
@click.argument("plan_id", metavar="PLAN")
@author_option
@reason_option
@asks_a_broker
def cancel(remote: Remote, plan_id: str, author: str, reason: str) -> None:
    """Begin no more of its moves; those under way arrive."""
    _told(remote, _act(remote, plan_id, "cancel", author, reason))


@plans.command(short_help="What of it holds, predicted against actual load.")
@click.argument("plan_id", metavar="PLAN")
@author_option
@asks_a_broker
def verify(remote: Remote, plan_id: str, author: str) -> None:
    """What of it holds, and how full its brokers are against what was predicted."""
    found = _act(remote, plan_id, "verify", author, "")
    if remote.output == "json":
        show_pairs(remote, found, [])
        return
    seen = found["verification"]
    echo(f"plan {plan_id} is {found['state']}: {seen['holding']} moves hold, {len(seen['moved_on'])} do not")
    for bundle, where in seen["moved_on"].items():
        echo(hanging(f"  {bundle}: ", "    ", where))
    _show_figures(remote, found)


@plans.command(short_help="Propose to take it back.")
@click.argument("plan_id", metavar="PLAN")
@author_option
@reason_option
@asks_a_broker
def undo(remote: Remote, plan_id: str, author: str, reason: str) -> None:
    """Propose a plan that takes back what still is where this one put it; the rest is listed with where it is."""
    _show(remote, _act(remote, plan_id, "undo", author, reason), all_moves=False)


@plans.command(short_help="Undo it at once.")
@click.argument("plan_id", metavar="PLAN")
@author_option
@reason_option
@asks_a_broker
def withdraw(remote: Remote, plan_id: str, author: str, reason: str) -> None:
    """Have the leader undo it at once, where nobody else has changed it since; `undo` has that looked at first."""
    _told(remote, _act(remote, plan_id, "withdraw", author, reason))


@click.command(short_help="Unload a whole namespace or broker, in waves.")
@click.option("-n", "--namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE)
@click.option("--broker", metavar="HOST:PORT", type=BROKER, help="Everything that this broker holds.")
@click.option("--to", metavar="HOST:PORT", type=BROKER, help="Move it there; without it, lookups place it.")
@click.option("--wave", type=click.IntRange(1, 1_000), default=10, show_default=True, help="So many at a time.")
@click.option("--review", is_flag=True, help="Only propose it: it waits for approval.")
@click.option("--no-wait", is_flag=True, help="Only begin.")
@author_option
@reason_option
@asks_a_broker
def unload(
    remote: Remote,
    namespace: str | None,
    broker: str | None,
    to: str | None,
    wave: int,
    review: bool,
    no_wait: bool,
    author: str,
    reason: str,
) -> None:
    """Unload all bundles of a namespace or broker, so many at a time; each wave waits for the one before.

    Stopping this command stops nothing: loadmanager plans cancel does.
    """
    if (namespace is None) == (broker is None):
        raise click.UsageError("name either --namespace or --broker")
    body = {"namespace": namespace, "broker": broker, "to": to, "wave": wave, "review": review}
    body |= {"author": author, "reason": reason}
    found = run(ask(remote, "POST", "/v1/plans/unload", body=body))
    if not (review or no_wait):
        if remote.output == "table":
            echo(f"this is plan {found['id']}; to stop it: loadmanager plans cancel {found['id']}", err=True)
        found = run(_wait(remote, found))
    _told(remote, found)


async def _wait(remote: Remote, found: dict[str, Any]) -> dict[str, Any]:
    """Until it is over; progress goes to the terminal."""
    told = ""
    while found["state"] not in OVER:
        counts = _counts(found)
        if remote.output == "table" and counts != told:
            told = counts
            echo(f"{found['state']}: {counts}", err=True)
        await asyncio.sleep(POLL_S)
        found = await ask(remote, "GET", _path(found["id"]))
    return found


def _act(remote: Remote, plan_id: str, action: str, author: str, reason: str) -> dict[str, Any]:
    body = {"author": author, "reason": reason}
    answer: dict[str, Any] = run(ask(remote, "POST", f"{_path(plan_id)}/{action}", body=body))
    return answer


def _path(plan_id: str) -> str:
    return f"/v1/plans/{segment(plan_id)}"


def _told(remote: Remote, found: dict[str, Any]) -> None:
    """One line; what did not come off is listed."""
    what = found["what"] if found["advice"] else _counts(found)
    done(remote, f"plan {found['id']} is {found['state']}: {what}", **found)
    if remote.output == "table":
        for move in found["planned"]:
            if move["outcome"] in ("failed", "skipped"):
                echo(hanging(f"  {move['outcome']}: {move['bundle']}: ", "    ", move["detail"]), err=True)
    if found["state"] == "failed":
        raise Failed(f"plan {found['id']} did not end as planned; see: loadmanager plans show {found['id']}")


def _show(remote: Remote, found: dict[str, Any], *, all_moves: bool) -> None:
    certificate = found["certificate"]
    pairs: list[tuple[str, object]] = [
        ("plan", found["id"]),
        ("kind", found["kind"]),
        ("state", found["state"] + (f": {found['waiting']}" if found["waiting"] else "")),
        ("what", found["what"]),
        ("pieces" if found["advice"] else "moves", _counts(found)),
        ("proposed", f"{age(found['proposed_ms'])} ago by {found['author']}"),
        ("reason", found["reason"]),
        ("you may", ", ".join(found["may"]) or "nothing more"),
    ]
    if found["strategy"]:
        pairs.append(("strategy", found["strategy"]))
    if found["undoes"]:
        pairs.append(("undoes", found["undoes"]))
    if certificate:
        pairs.append(("certificate", certificate["text"]))
    pairs += _promised(found["advice"]) if found["advice"] else []
    show_pairs(remote, found, pairs)
    if remote.output == "json":
        return
    if found["steps"]:
        echo()
        steps = [(s["action"], age(s["at_ms"]), s["author"], s["reason"]) for s in found["steps"]]
        show(remote, found, ("step", "age", "by", "why"), steps)
    if not found["planned"]:
        return
    echo()
    moves = found["planned"] if all_moves else found["planned"][:SHOWN_MOVES]
    rows = [
        (m["bundle"], m["source"], m["destination"], m["stage"], m["outcome"], m["detail"] or m["reason"])
        for m in moves
    ]
    show(remote, found, ("bundle", "from", "to", "stage", "", "why"), rows)
    if len(moves) < len(found["planned"]):
        echo(f"and {len(found['planned']) - len(moves)} more: --all", err=True)
    for bundle, why in found["left_out"].items():
        echo(hanging(f"  not in it: {bundle}: ", "    ", why))
    _show_figures(remote, found)


def _promised(advice: dict[str, Any]) -> list[tuple[str, object]]:
    """Where it comes from, what it promises, and what came of it."""
    expected, origin, effect = advice["expected"], advice["provenance"], advice["effect"]
    promised = f"{expected['measure']} {expected['before']:.3g} → {expected['after']:.3g}"
    tables = ", ".join(f"{name} v{version}" for name, version in origin["tables"].items())
    times = f"from {age(origin['data_from_ms'])} ago to {age(origin['data_to_ms'])} ago"
    pairs: list[tuple[str, object]] = [
        ("promises", f"{promised}, better by {expected['low']:.3g} to {expected['high']:.3g} (95 %)"),
        ("made by", f"{origin['job']} {origin['job_version']}, {origin['method']}"),
        ("of data", f"of {origin['cluster']}, {times}"),
    ]
    if tables:
        pairs.append(("tables", tables))
    if effect:
        pairs += [("effect", effect["text"]), ("measured", f"{effect['measured_from']} to {effect['measured_to']}")]
    return pairs


def _show_figures(remote: Remote, found: dict[str, Any]) -> None:
    verified: dict[str, Any] = found["verification"] or {}
    columns: list[dict[str, Any]] = [
        found["before"],
        found["predicted"],
        verified.get("actual") or {"usages": {}, "spread": None},
    ]
    names = sorted({name for each in columns for name in each["usages"]})
    if not names:
        return
    rows = [(name, *(_percent(each["usages"].get(name)) for each in columns)) for name in names]
    rows.append(("spread", *(_percent(each["spread"]) for each in columns)))
    echo()
    show(remote, found, ("usage", "before", "predicted", "verified"), rows)


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f} %"


def _counts(found: dict[str, Any]) -> str:
    return ", ".join(f"{count} {status}" for status, count in found["counts"].items()) or "none"
