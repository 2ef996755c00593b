"""`loadmanager decisions`: the rounds of balancing, with what each decided and why, including idle ones."""

from __future__ import annotations

from typing import Any

import click

from loadmanager_api.cli.client import Failed, ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.explain import log_option, more_option
from loadmanager_api.cli.explain_showing import clock
from loadmanager_api.cli.grouping import Group
from loadmanager_api.cli.names import segment
from loadmanager_api.cli.options import asks_a_broker, cursor_option, shows
from loadmanager_api.cli.printing import age, hanging, show, show_answer
from loadmanager_api.cli.projecting import heading, percent, show_moves
from loadmanager_api.cli.remote import Remote

CANDIDATES_SHOWN = 10


@click.group(cls=Group)
def decisions() -> None:
    """Show the rounds of balancing: what each decided, and why."""


@decisions.command("list")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=20,
    show_default=True,
    help="Number of rounds at most.",
)
@cursor_option
@log_option
@more_option
@shows
def list_(remote: Remote, limit: int, cursor: str | None, log: str | None, more: tuple[str, ...]) -> None:
    """List rounds, newest first."""
    if log is not None:
        from loadmanager.cluster.journal import offset_of
        from loadmanager_api.cli.explain_offline import asked

        listed = asked(log, more, lambda explainer: explainer.listed(limit, offset_of(cursor)))
        found: Any = {"decisions": listed, "next": str(listed[-1]["offset"]) if len(listed) == limit else None}
    else:
        query = {"limit": str(limit), "cursor": cursor}
        found = run(ask(remote, "GET", "/v1/decisions", query=query))
    rows = [
        (d["id"], clock(d["at_ms"]), age(d["at_ms"]), d["leader"], d["strategy"], _moves(d), _spread(d), d["reason"])
        for d in found["decisions"]
    ]
    columns = ("decision", "time", "age", "leader", "strategy", "moves", "spread", "reason")
    show(remote, found, columns, rows, empty="no decisions")
    if remote.for_people and found["next"]:
        echo(f"there are older rounds: give --cursor {found['next']}, or a greater --limit", err=True)


def _moves(each: dict[str, Any]) -> str:
    if not each["moves"] or each["begun"] == each["moves"]:
        return str(each["moves"])
    return f"{each['begun']} of {each['moves']}"


def _spread(each: dict[str, Any]) -> str:
    before, after = percent(each["spread_before"]), percent(each["spread_after"])
    return before if before == after else f"{before} → {after}"


@decisions.command("show")
@click.argument("decision")
@click.option("--verify", is_flag=True, help="Run the strategy again on the recorded model, and compare the decisions.")
@log_option
@more_option
@asks_a_broker
def show_(remote: Remote, decision: str, verify: bool, log: str | None, more: tuple[str, ...]) -> None:
    """Show one round, EPOCH.ROUND: its moves with their outcome, and what was considered but not done."""
    found, again = _asked(remote, decision, verify, log, more)
    if not remote.for_people:
        show_answer(remote, {**found, "again": again} if verify else found)
    else:
        _show(found)
        if again is not None:
            _show_again(again)
    if again is not None and again["same"] is False:
        raise Failed("the same strategy decides differently on the same model")


def _asked(remote: Remote, decision: str, verify: bool, log: str | None, more: tuple[str, ...]) -> tuple[Any, Any]:
    if log is None:
        path = f"/v1/decisions/{segment(decision)}"
        return run(ask(remote, "GET", path)), run(ask(remote, "GET", f"{path}/again")) if verify else None
    from loadmanager.decisions.explaining.deciding_again import decide_again
    from loadmanager.decisions.explaining.projection import record_shown
    from loadmanager.decisions.explaining.service import Explainer
    from loadmanager_api.cli.explain_offline import asked

    async def both(explainer: Explainer) -> tuple[Any, Any]:
        record = await explainer.decision(decision)
        return record_shown(record), decide_again(record) if verify else None

    return asked(log, more, both)


def _show(found: dict[str, Any]) -> None:
    decided = found["decision"]
    head = f"Round {found['id']} of {found['leader']}, {clock(found['at_ms'])} ({age(found['at_ms'])} ago)"
    echo(head, bold=True)
    of = f"{found['brokers']} brokers, {found['bundles']} bundles, model {found['digest']}"
    what = of if found["brokers"] is not None else f"no model: {found['without_model'] or 'nothing was looked at'}"
    echo(f"{found['strategy']}, policies as of {found['policies_revision']}; {what}")
    echo(hanging("", "  ", decided["reason"]))
    show_moves(decided)
    if decided["candidates"]:
        heading("not done")
        for each in decided["candidates"][:CANDIDATES_SHOWN]:
            text = f"{each['source']} → {each['destination']}: {each['rule']}, {each['detail']}"
            echo(hanging(f"  {each['bundle']}  ", "      ", text))
    if decided["counts"]:
        counted = ", ".join(f"{count} by {rule!r}" for rule, count in decided["counts"].items())
        echo(hanging("  others refused: ", "      ", counted))
    for each in decided["refused"]:
        echo(hanging(f"  left out: {each['subject']}  ", "      ", f"{each['rule']}, {each['detail']}"))


def _show_again(again: dict[str, Any]) -> None:
    if again["same"] is None:
        echo(f"\ncannot be decided again: {again['why']}")
    elif again["same"]:
        echo("\ndecided again from the record: the decision is the same")
    else:
        echo("\ndecided again from the record: the decision differs:")
        for text in again["differences"]:
            echo(hanging("  ", "    ", text))
