"""Prints explanations for people: the answer first, in one sentence; then its reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.printing import age, hanging
from loadmanager_api.cli.projecting import columns, heading, percent

TARGETS_SHOWN = 5
MOVES_SHOWN = 20
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
        _section("taken from it", [("", each) for each in found["taken"][:MOVES_SHOWN]])
    if found["given"]:
        _section("given to it", [("", each) for each in found["given"][:MOVES_SHOWN]])
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
