"""The report: one HTML page that needs no network, and its pictures as PNGs.

    lake ─▶ collect (Spark: buckets and tops, bounded) ─▶ Material ─▶ charts (Altair) and tables ─▶ page.html

Results of replay, audit and advice are taken as published; the report runs none of them. Drawing needs Altair and
vl-convert, of the extra `history`; neither making nor reading it fetches anything. The page is light or dark as the
reader's system is. The label that screen readers get for a mark is also shown beside the pointer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import msgspec

from loadmanager.history.published import Provenance
from loadmanager.history.report import charts
from loadmanager.history.report.charts import Chart, Drawn, clock, draw, duration
from loadmanager.history.report.material import Found, Material, collect
from loadmanager.strategies.playground.bounds import IDLE

__all__ = ["Found", "Made", "Material", "collect", "made"]

FAILOVERS_SHOWN = 8
_CODE = re.compile("`([^`]*)`")


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


CHARTS: tuple[Callable[[Material], Chart], ...] = (
    charts.heat_map,
    charts.imbalance,
    charts.transfers,
    charts.gaps,
    charts.forecast,
    charts.replay,
    charts.capacity,
)
SECTIONS: tuple[tuple[str, tuple[str, ...], Callable[[Material], str]], ...] = (
    ("Load", ("heat-map", "imbalance"), lambda _: ""),
    ("Moves", ("transfers", "gaps"), lambda material: gaps(material) + failovers(material)),
    ("What would have been better", ("replay",), settings),
    ("What is advised", (), advice),
    ("What comes", ("forecast",), lambda _: ""),
    ("What load costs", ("capacity",), lambda _: ""),
)
"""Heading, charts, and what follows them."""


class Made(msgspec.Struct, frozen=True):
    """A report: the page, and PNGs by name."""

    html: str
    pictures: dict[str, bytes]


def made(material: Material, provenance: Provenance, drawing: Callable[[str], None] = lambda _: None) -> Made:
    """Draw it; `drawing` is told of each picture. Raises Invalid without the extra `history`."""
    drawn: dict[str, Drawn] = {}
    for chart_of in CHARTS:
        drawing(chart_of.__name__.replace("_", " "))
        one = draw(chart_of(material))
        drawn[one.chart.name] = one
    html = Template(files(__name__).joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=title_of(material),
        span=_span(material),
        figures=figures(material),
        sections="".join(
            _section(heading, [drawn[name] for name in names], more(material)) for heading, names, more in SECTIONS
        ),
        made=_made(provenance),
    )
    return Made(html, {name: one.png for name, one in drawn.items() if one.png})


def title_of(material: Material) -> str:
    """The page's title, with its days."""
    begin, end = (at.astimezone(UTC) for at in (material.span.begin, material.span.end))
    if begin.date() == end.date():
        return f"Load history, {_day(begin)} {begin:%B %Y}"
    form = "" if (begin.year, begin.month) == (end.year, end.month) else f" {begin:%B}"
    form += "" if begin.year == end.year else f" {begin:%Y}"
    return f"Load history, {_day(begin)}{form} to {_day(end)} {end:%B %Y}"


def _day(at: datetime) -> str:
    return f"{at:%d}".lstrip("0")


def _span(material: Material) -> str:
    begin, end = (at.astimezone(UTC) for at in (material.span.begin, material.span.end))
    same = begin.date() == end.date()
    return escape(f"{begin:%d %B %Y, %H:%M:%S} to {end:{'%H:%M:%S' if same else '%d %B %Y, %H:%M:%S'}} UTC")


def _section(heading: str, drawn: Sequence[Drawn], more: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{''.join(map(_figure, drawn))}{more}</section>\n"


def _figure(one: Drawn) -> str:
    chart = one.chart
    told = _CODE.sub(r"<code>\1</code>", escape(chart.note))
    title, note = f"<h3>{escape(chart.title)}</h3>", f"<p class=note>{told}</p>"
    if not one.svg:
        return f"<figure class=none>{title}{note}</figure>"
    return f'<figure id="{chart.name}">{title}{one.svg}<figcaption>{note}</figcaption></figure>'


def _made(provenance: Provenance) -> str:
    tables = ", ".join(f"{name} {version}" for name, version in sorted(provenance.lake_versions.items()))
    return escape(
        f"Made {provenance.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC by loadmanager {provenance.release}, "
        f"from the lake {provenance.lake.rpartition('/')[2] or provenance.lake}. "
        + (f"Versions of its tables: {tables}." if tables else "")
    )
