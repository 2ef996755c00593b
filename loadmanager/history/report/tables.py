"""The page's tables: figures at its head, moves, settings to apply, advice. HTML, escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from loadmanager.history.report.drawing import clock, duration
from loadmanager.history.report.material import Material
from loadmanager.strategies.playground.bounds import IDLE

FAILOVERS_SHOWN = 8


def figures(material: Material) -> str:
    """The head: a few numbers that summarise the time."""
    levels = material.levels
    mean = sum(row["mean"] for row in levels) / len(levels)
    over = [row["max"] / row["mean"] for row in levels if row["max"] > IDLE and row["mean"] > 0] or [1.0]
    moved = sum(row["moves"] for row in material.moves)
    found = [
        (str(material.brokers), "brokers reported"),
        (f"{mean:.0%}", "full, in the mean"),
        (f"{sum(over) / len(over):.2f}", "fullest over mean, when busy"),
        (f"{moved:,}", "moves of bundles"),
        (f"{material.lost:,}", "brokers lost"),
        _verdict(material),
    ]
    cells = (f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in found)
    return f"<div class=figures>{''.join(cells)}</div>"


def _verdict(material: Material) -> tuple[str, str]:
    audit = material.found.audit
    if audit is None:
        return "?", "not audited yet"
    count = int(audit.facts.get("violations", len(audit.rows)))
    return f"{count:,}", "violations in the audit" if count else "violations: the audit is clean"


def gaps(material: Material) -> str:
    """How long moves took, by how and why."""
    rows = [
        (
            *(row["how"], row["why"] or "-", f"{row['moves']:,}"),
            *(duration(row[key]) if row[key] is not None else "-" for key in ("p50_s", "p90_s", "p99_s", "max_s")),
            *(duration(row["sum_s"]) if row["sum_s"] is not None else "-", str(row["returned"])),
        )
        for row in material.gaps
    ]
    head = ("how", "why", "moves", "gap p50", "p90", "p99", "worst", "in all", "came back")
    return _table(head, rows, numbers_from=2) if rows else ""


def failovers(material: Material) -> str:
    """Which brokers were lost, and how soon others served."""
    if not material.failovers:
        return ""
    span_s = material.span.seconds
    rows = [
        (
            *(clock(row["revoked_at"], span_s), row["broker"], f"{row['served']} of {row['bundles']}"),
            *(duration(row[key]) if row[key] is not None else "-" for key in ("p50_s", "max_s")),
            clock(row["back_at"], span_s) if row["back_at"] else "-",
        )
        for row in material.failovers[:FAILOVERS_SHOWN]
    ]
    head = ("revoked", "broker", "bundles served again", "after (p50)", "the last after", "it was back")
    more = material.lost - len(rows)
    rest = f"<p class=note>{more:,} earlier ones are in the analysis <code>failovers</code>.</p>" if more else ""
    return f"<h3>Brokers whose bundles were taken over</h3>{_table(head, rows, numbers_from=2)}{rest}"


def settings(material: Material) -> str:
    """The commands that make the cluster behave as the best candidate of the replay."""
    found = material.found.replay
    commands = (found.facts.get("config") or {}).get("commands") or [] if found else []
    if not commands:
        return ""
    return f"<h3>Commands that set the first of them</h3><pre>{escape(chr(10).join(commands))}</pre>"


def advice(material: Material) -> str:
    """What is advised, each with its reason and what it promises."""
    found = material.found.advice
    if found is None:
        return "<p class=note>There is no advice yet: run <code>loadmanager history advise</code>.</p>"
    if not found.rows:
        return "<p class=note>Nothing: the job finds no improvement in this data.</p>"
    return "".join(_card(row) for row in found.rows)


def _card(row: dict[str, Any]) -> str:
    expected: dict[str, Any] = row.get("expected") or {}
    promise = ""
    if expected:
        promise = (
            f"<p class=note>Promised: {escape(str(expected['measure']).replace('_', ' '))} from "
            f"{expected['before']:.3g} to {expected['after']:.3g} (better by {expected['low']:.3g} to "
            f"{expected['high']:.3g}, with 95 % confidence)</p>"
        )
    return (
        f"<div class=card><h3>{escape(str(row.get('title') or row.get('kind') or 'advice'))}</h3>"
        f"<p>{escape(str(row.get('reason', '')))}</p>{promise}"
        f"<p class=note>id {escape(str(row.get('id', '')))}</p></div>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers_from: int) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if at >= numbers_from else ''}>{escape(cell)}</{tag}>" for at, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<div class=table><table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table></div>"
