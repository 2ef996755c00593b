"""What `top` shows, as rows of text: made of what brokers answered. Asks nothing, and knows no screen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from loadmanager_api.cli.brokers import is_ailing, state_of
from loadmanager_api.cli.bundles import owner_of
from loadmanager_api.cli.printing import age, cell, one_line
from statechannel.law.record import Action
from statechannel.law.transitions import State

BARS = "▁▂▃▄▅▆▇█"
WIDE = 120
"""Columns of a terminal from which on there is room for more columns of a table."""
MOVES_KEPT = 200
SETTLED = (State.ASSIGNED, State.UNASSIGNED)

Row = tuple[str, ...]


class Table(msgspec.Struct, frozen=True):
    """Columns, and rows by the name of what they show. `right`: columns that are aligned to the right."""

    columns: Row
    rows: Mapping[str, Row]
    right: frozenset[str] = frozenset({"bundles", "usage", "cpu", "memory", "msg/s", "MB/s", "up", "took"})


def brokers_table(
    brokers: Iterable[Mapping[str, Any]], usage: Mapping[str, Any], balancing: Mapping[str, Any], columns: int
) -> Table:
    """Brokers, those that need attention first; `columns` is how wide the terminal is."""
    wide = columns >= WIDE
    names = ("broker", "state", "bundles", "usage", *(("cpu", "memory") if wide else ()), "msg/s")
    names = (*names, *(("up", "domain") if wide else ()), "usage so far")
    spans = 60 if wide else 16
    rows: dict[str, Row] = {}
    for broker in sorted(brokers, key=lambda each: (not is_ailing(each), each["broker"])):
        name, load = broker["broker"], broker["load"] or {}
        used = balancing.get("usages", {}).get(name)
        parts = {
            "broker": one_line(name),
            "state": state_of(broker),
            "bundles": str(broker["bundles"]),
            "usage": "-" if used is None else f"{100 * used:.1f} %",
            "cpu": _percent(load, "cpu_percent"),
            "memory": _percent(load, "memory_percent"),
            "msg/s": _rate(load),
            "up": age(broker["started_ms"]) if broker["started_ms"] else "-",
            "domain": cell(broker["failure_domain"]),
            "usage so far": bars(usage.get("brokers", {}).get(name, ())[-spans:]),
        }
        rows[f"{name}#{broker['incarnation']}"] = tuple(parts[column] for column in names)
    return Table(names, rows)


def bundles_table(bundles: Iterable[Mapping[str, Any]], columns: int) -> Table:
    """Bundles, in the given order. Where one is going has no room on a narrow terminal: the moves tell it."""
    wide = columns >= WIDE
    more = ("MB/s", "last record") if wide else ()
    rows = {
        bundle["bundle"]: (
            one_line(bundle["bundle"]),
            bundle["state"],
            cell(owner_of(bundle if wide else {**bundle, "target": None})),
            _number(bundle["rate_msg_s"], 0),
            *((_number(bundle["rate_bytes_s"], 1, 1e6), _last(bundle)) if wide else ()),
        )
        for bundle in bundles
    }
    return Table(("bundle", "state", "owner", "msg/s", *more), rows)


def by_attention(bundles: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Bundles that no broker serves first, then those under way; else in the given order.

    A bundle that no lookup has asked for yet needs no broker.
    """

    def rank(bundle: Mapping[str, Any]) -> int:
        if bundle["owner"] is None:
            unasked = bundle.get("last_action") == Action.CREATE_NAMESPACE
            return 0 if bundle.get("waits") else 4 if unasked else 2
        if not bundle["owner_live"]:
            return 1
        return 4 if bundle["state"] in SETTLED else 3

    return sorted(bundles, key=rank)


class Move(msgspec.Struct):
    """What happens, or last happened, to a bundle."""

    began_ms: int
    source: str
    why: str
    to: str = "-"
    state: str = ""
    took_ms: int = 0

    def row(self, bundle: str, *, wide: bool) -> Row:
        """Its cells."""
        when = time.strftime("%H:%M:%S", time.localtime(self.began_ms / 1000))
        parts = (when, bundle, self.state, self.to)
        return (*parts[:3], self.source, self.to, f"{self.took_ms} ms", self.why) if wide else parts


class Moves:
    """The last move of each bundle, as `/v1/watch` tells of it; newest first."""

    def __init__(self) -> None:
        self._moves: dict[str, Move] = {}

    def tell(self, change: Mapping[str, Any]) -> None:
        """Take an event `change`."""
        for step in change["bundles"]:
            before, after = step["before"], step["after"]
            name = (after or before)["bundle"]
            move = self._moves.pop(name, None)
            if move is None or before is None or before["state"] in SETTLED:
                why = one_line(": ".join(filter(None, (change["action"], change["reason"]))))
                move = Move(change["at_ms"], cell(before["owner"] if before else None), why)
            move.took_ms = change["at_ms"] - move.began_ms
            move.state = after["state"] if after else "gone"
            move.to = cell((after["target"] or after["owner"]) if after else None)
            self._moves[name] = move
        while len(self._moves) > MOVES_KEPT:
            del self._moves[next(iter(self._moves))]

    def table(self, columns: int) -> Table:
        """The moves; `columns` is how wide the terminal is."""
        wide = columns >= WIDE
        rows = {name: move.row(one_line(name), wide=wide) for name, move in reversed(self._moves.items())}
        return Table(("time", "bundle", "now", *(("from", "to", "took", "why") if wide else ("to",))), rows)


def wrong(findings: Sequence[Mapping[str, Any]] | None) -> str:
    """The first finding of `/v1/health` with its remedy, and how many more there are; None: it is not ours to see."""
    if findings is None:
        return "what is wrong is not shown: it needs the role of a viewer in the whole cluster"
    if not findings:
        return "nothing is wrong"
    first, more = findings[0], len(findings) - 1
    count = f" (and {more} more: ! shows all)" if more else " (! shows why)"
    return one_line(f"{first['severity'].upper()}: {first['found']}{count} → {first['advice']}")


def all_wrong(findings: Sequence[Mapping[str, Any]]) -> str:
    """Every finding with its reason, its remedy, and since when."""
    paragraphs: list[str] = []
    for each in findings:
        since = f" for {age(each['since_ms'])}" if each["since_ms"] else ""
        lines = [f"{each['severity'].upper()}{since}: {each['found']}", each["why"], f"→ {each['advice']}"]
        lines.append(", ".join(each["names"]))
        paragraphs.append("\n".join(one_line(line) for line in lines if line))
    return "\n\n".join(paragraphs) or "nothing is wrong, as the asked broker sees the cluster"


def headline(balancing: Mapping[str, Any]) -> Iterator[str]:
    """Two lines: how balancing stands, and what the last round decided. Without an answer: that it is not shown."""
    if not balancing:
        yield "balancing is not shown: it needs the role of a viewer in the whole cluster"
        return
    paused, limits, under_way = balancing["paused"], balancing["limits"], balancing["in_flight"]["total"]
    mode = "on" if balancing["balancing"] else "off"
    which = [*(["the cluster"] if paused["cluster"] else []), *paused["namespaces"], *paused["brokers"]]
    parts = [
        f"balancing {mode}" + (", reviewed" if balancing["review"] else ""),
        f"paused: {', '.join(which)}" if which else "",
        f"spread {100 * balancing['spread']:.1f} % (tolerance {100 * balancing['tolerance']:.0f} %)",
        f"{under_way} of {limits['total']} moves under way",
        f"{len(balancing['held'])} held back" if balancing["held"] else "",
    ]
    yield one_line(" · ".join(filter(None, parts)))
    last = balancing["last"]
    yield one_line(f"last round {age(last['at_ms'])} ago: {last['reason']}") if last else "no round yet"


def bars(usages: Sequence[float | None]) -> str:
    """One sign for each span: its height is the usage, a blank no report."""
    return "".join(" " if used is None else BARS[min(max(0, int(used * len(BARS))), len(BARS) - 1)] for used in usages)


def _percent(load: Mapping[str, Any], name: str) -> str:
    return f"{load.get(name, 0.0):.1f} %" if load else "-"


def _rate(load: Mapping[str, Any]) -> str:
    return f"{load.get('in_rate_msg_s', 0.0) + load.get('out_rate_msg_s', 0.0):,.0f}" if load else "-"


def _number(value: float | None, digits: int, unit: float = 1.0) -> str:
    return "-" if value is None else f"{value / unit:,.{digits}f}"


def _last(bundle: Mapping[str, Any]) -> str:
    return one_line(f"{bundle['last_action']} by {bundle['last_actor']}")
