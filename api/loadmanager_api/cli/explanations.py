"""`loadmanager explain`: why a bundle is where it is and did not move; why a broker has what it has. `loadmanager
decisions`: the rounds of balancing, with what each decided and why, including idle ones.

Now or at any past moment, from a broker or, with `--log`, from the log alone. For people the answer comes first, in one
sentence; then its reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from loadmanager_api.cli.client import Failed, ask, run
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.names import segment
from loadmanager_api.cli.options import ParamType, SinceType, asks_a_broker, cursor_option, shows
from loadmanager_api.cli.printing import age, echo, hanging, show, show_answer
from loadmanager_api.cli.remote import Remote
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle

MOVES_SHOWN = 30
BROKERS_SHOWN = 20


def percent(fraction: float | None) -> str:
    """`12.3 %`."""
    return "?" if fraction is None else f"{fraction * 100:.1f} %"


def heading(text: str) -> None:
    """A line of its own, behind an empty one."""
    echo(f"\n{text}", bold=True)


def columns(names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Plain columns; the last one wraps."""
    widths = [max([len(name), *(len(row[at]) for row in rows)]) for at, name in enumerate(names)]
    head = "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)).rstrip()
    echo(f"  {head}", dim=True)
    for row in rows:
        begin = "  " + "".join(text.ljust(width) + "  " for text, width in zip(row[:-1], widths, strict=False))
        echo(hanging(begin, " " * len(begin), row[-1]) if row[-1] else begin.rstrip())


def show_moves(decided: dict[str, Any]) -> None:
    """The moves in order, and the certificate."""
    moves = decided["moves"]
    if moves:
        heading(f"{len(moves)} move{'s' * (len(moves) > 1)}")
        rows = [(m["bundle"], f"{m['source']} → {m['destination'] or 'a lookup'}", _said(m)) for m in moves]
        columns(("bundle", "from → to", "why"), rows[:MOVES_SHOWN])
        if len(rows) > MOVES_SHOWN:
            echo(f"  and {len(rows) - MOVES_SHOWN} more (-o json)")
    certificate = decided["certificate"]
    if certificate is not None and certificate["text"]:
        heading("how good that is")
        echo(hanging("  ", "  ", certificate["text"]))


def _said(move: dict[str, Any]) -> str:
    became = f" [{move['outcome']}{': ' * bool(move['detail'])}{move['detail']}]" if move["outcome"] else ""
    return f"{move['reason']}{became}"


def show_brokers(found: dict[str, Any], other: dict[str, Any] | None = None) -> None:
    """Each broker before and after; with another projection, that one's too."""
    heading("brokers")
    beside = {each["broker"]: each for each in other["brokers"]} if other is not None else {}
    names = (
        ("broker", "now", "after a round", "after it with the change", "")
        if other is not None
        else ("broker", "now", "after it", "")
    )
    shown = other["brokers"] if other is not None else found["brokers"]
    before = {each["broker"]: each for each in found["brokers"]}
    rows: list[tuple[str, ...]] = []
    for each in sorted(shown, key=lambda b: -(b["before"] or 0.0))[:BROKERS_SHOWN]:
        mine = before.get(each["broker"])
        usual = (percent(mine["before"]), percent(mine["after"])) if mine is not None else ("-", "-")
        changed = (percent(beside[each["broker"]]["after"]),) if other is not None else ()
        rows.append((each["broker"], *usual, *changed, _traffic(each)))
    columns(names, rows)
    if len(shown) > BROKERS_SHOWN:
        echo(f"  and {len(shown) - BROKERS_SHOWN} more (-o json)")


def _traffic(each: dict[str, Any]) -> str:
    said = [f"{each['taken']} go"] if each["taken"] else []
    said += [f"{each['given']} come"] if each["given"] else []
    said += [] if each["takes_part"] else ["takes no part"]
    return ", ".join(said)


TARGETS_SHOWN = 5
MOVES_LISTED = 20
MARGIN = "  "
OF_THE_WHOLE = ("nothing decided", "not chosen", "the round")


def show_bundle(found: dict[str, Any]) -> None:
    """Print a bundle's explanation."""
    _title(found["bundle"], found["answer"])
    _round(found)
    _section("why it is there", [_event(each) for each in found["because"]], "no record of it is kept any more")
    if found["obstacles"]:
        _section("why it stays", _reasons(found["obstacles"]))
    if found["changes"] or found["obstacles"]:
        _section("it would move if", list(_changes(found)), "nothing that was tried would move it")
    _targets(found["targets"])
    if found["loads"]:
        _section("its load", [(each["resource"], _load(each, found["owner"])) for each in found["loads"]])
    _section("policies", [("", each) for each in found["policies"]], "no policy applies to it")
    _notes(found)


def show_broker(found: dict[str, Any]) -> None:
    """Print a broker's explanation."""
    _title(found["broker"], found["answer"])
    _round(found)
    if found["loads"]:
        rows = [(each["resource"], _used(each)) for each in found["loads"]]
        most = f" of at most {found['max_bundles']}" if found["max_bundles"] else ""
        _section("what it uses", [*rows, ("bundles", f"{found['bundles']}{most}")])
    if found["taken"]:
        _section("taken from it", [("", each) for each in found["taken"][:MOVES_LISTED]])
    if found["given"]:
        _section("given to it", [("", each) for each in found["given"][:MOVES_LISTED]])
    if found["not_taken"]:
        _section("why nothing was taken", _reasons(found["not_taken"]))
    if found["not_given"]:
        _section("why nothing was given", _reasons(found["not_given"]))
    if found["held"]:
        heading("its hottest bundles")
        rows = [(each["bundle"], percent(each["usage"]), each["sentence"]) for each in found["held"]]
        columns(("bundle", "of it", "why it stays"), rows)
    if found["in_flight"]:
        _section("on their way", [("", each) for each in found["in_flight"]])
    _section("policies", [("", each) for each in found["policies"]], "no policy applies to it")
    _notes(found)


def _title(subject: str, answer: str) -> None:
    echo(subject, bold=True)
    echo(hanging("", "", answer[:1].upper() + answer[1:] + "."))


def _round(found: dict[str, Any]) -> None:
    said = found["round"]
    if said is None:
        return
    text = (
        f"Round {said['id']} of {said['leader']}, {clock(said['at_ms'])} ({age(said['at_ms'])} ago), {said['strategy']}"
    )
    echo(hanging("", MARGIN, f"{text}: {said['reason']}"))


def _section(name: str, rows: Sequence[tuple[str, str]], empty: str = "") -> None:
    if not rows and not empty:
        return
    heading(name)
    width = max((len(label) for label, _ in rows), default=0)
    for label, text in rows or [("", empty)]:
        begin = f"{MARGIN}{label.ljust(width)}{MARGIN if width else ''}"
        echo(hanging(begin, " " * len(begin), text))


def _reasons(obstacles: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """The reasons. The round's own reason is printed above already: it is repeated only if there is nothing else."""
    particular = [each for each in obstacles if each["rule"] not in OF_THE_WHOLE]
    return [(each["rule"], each["sentence"]) for each in particular or obstacles]


def _event(each: dict[str, Any]) -> tuple[str, str]:
    cause = f" [decision {each['cause']}]" if each["cause"] else ""
    why = f": {each['reason']}" if each["reason"] else ""
    return clock(each["at_ms"]), f"{each['text']}{cause}{why}"


def _changes(found: dict[str, Any]) -> Iterable[tuple[str, str]]:
    for each in found["changes"]:
        if not each["tried"]:
            yield "", f"{each['change']} (not tried: that takes too long here)"
        elif each["goes_to"]:
            yield "", f"{each['change']} → {each['goes_to']}"
        else:
            yield "", f"{each['change']}: that alone would not move it"
    tried = {each["change"] for each in found["changes"]}
    if not any(each["goes_to"] for each in found["changes"]):
        hints = [text for obstacle in found["obstacles"] for text in obstacle["lifted_by"]]
        yield from (("", text) for text in dict.fromkeys(hints) if text not in tried)


def _targets(targets: Sequence[dict[str, Any]]) -> None:
    if not targets:
        return
    heading("where it might go")
    rows = [
        (each["broker"], percent(each["usage"]), percent(each["after"]), each["rule"] or "may take it")
        for each in targets[:TARGETS_SHOWN]
    ]
    columns(("broker", "now", "with it", ""), rows)
    if len(targets) > TARGETS_SHOWN:
        echo(f"{MARGIN}and {len(targets) - TARGETS_SHOWN} more (-o json)")


def _load(each: dict[str, Any], owner: str) -> str:
    part = f", {percent(each['usage'])} of {owner}" if each["usage"] and owner else ""
    return f"{natural(each['load'], each['unit'])}{part}"


def _used(each: dict[str, Any]) -> str:
    counts = percent(each["usage"]) if each["usage"] or not each["load"] else "does not count"
    of = f" of {natural(each['capacity'], each['unit'])}, {counts}" if each["capacity"] else ""
    foreign = each["foreign"] or 0.0
    other = f"; {natural(foreign, each['unit'])} that no reported bundle explains" if foreign > 0 else ""
    return f"{natural(each['load'], each['unit'])}{of}{other}"


def _notes(found: dict[str, Any]) -> None:
    for note in found["notes"]:
        echo(hanging("\nnote: ", "      ", note))


def natural(value: float, unit: str) -> str:
    """`2.4 cores`, `1.5 MB/s`."""
    if unit.startswith("bytes"):
        for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if value >= size:
                return f"{value / size:.3g} {prefix}B{unit.removeprefix('bytes')}"
    return f"{value:,.0f} {unit}" if value >= 1_000 else f"{value:.3g} {unit}"


def clock(at_ms: int) -> str:
    """Local time; with the day only if it is not today."""
    at = datetime.fromtimestamp(at_ms / 1000).astimezone()
    today = at.date() == datetime.now().astimezone().date()
    return at.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


class SubjectType(ParamType[str]):
    """A bundle or a broker; which of them, its form tells."""

    name = "subject"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:  # noqa: ARG002
        from loadmanager_api.cli.suggesting import brokers, bundles

        return bundles(ctx, incomplete) if "/" in incomplete else brokers(ctx, incomplete)


at_option = click.option(
    "--at",
    "at_ms",
    type=SinceType(),
    metavar="TIME",
    help="A past moment: 15m, 12h (ago), or a date and time.  [default: now]",
)
log_option = click.option(
    "--log", metavar="ADDRESS", help="Read this log instead of asking a broker: sqlite:FILE or kafka://…"
)
more_option = click.option(
    "--set", "more", multiple=True, metavar="NAME=VALUE", help="With --log: any other setting; repeatable."
)


@click.command(short_help="Explain why a bundle or broker is as it is.")
@click.argument("subject", metavar="BUNDLE|BROKER", type=SubjectType())
@at_option
@click.option(
    "--no-try",
    "trying",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Do not try what would move the bundle: faster.",
)
@log_option
@more_option
@shows
def explain(
    remote: Remote, subject: str, at_ms: int | None, trying: bool, log: str | None, more: tuple[str, ...]
) -> None:
    """Explain why a bundle is where it is, why it did not move, what would make it move, and where it would go; or why
    a broker has what it has.

    --at explains any past moment that the logs hold. --log reads the log alone and needs no running broker.
    """
    bundle = bundle_of(subject)
    if log is not None:
        from loadmanager_api.cli.explain_offline import explained

        found = explained(log, more, bundle or subject, at_ms, trying=trying)
    else:
        query = {"at": at_ms, "try": None if trying else "false"}
        found = run(ask(remote, "GET", path_of(subject, bundle), query=query))
    if not remote.for_people:
        show_answer(remote, found)
    elif bundle is not None:
        show_bundle(found)
    else:
        show_broker(found)


def bundle_of(subject: str) -> Bundle | None:
    """The bundle that this names, None if it names a broker. Raises UsageError."""
    if "/" not in subject:
        return None
    try:
        return Bundle.parse(subject)
    except InvalidName as error:
        raise click.UsageError(f"{error}; or a broker: host:port") from None


def path_of(subject: str, bundle: Bundle | None) -> str:
    """Where it is explained."""
    return f"/v1/explain/bundles/{bundle}" if bundle is not None else f"/v1/explain/brokers/{segment(subject)}"


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
    from loadmanager.decisions.explaining.explainer import Explainer
    from loadmanager.decisions.explaining.what_if import decide_again, record_shown
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
