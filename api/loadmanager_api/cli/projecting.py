"""Decisions for people: their moves, what these make of the brokers, and how good that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.printing import hanging

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
