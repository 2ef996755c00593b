"""The page: pictures, tables and advice, as one self-contained HTML document.

Light or dark as the reader's system is. The label that screen readers get for a mark is also shown beside the pointer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from string import Template

import msgspec

from loadmanager.history.published import Provenance
from loadmanager.history.report import charts_future, charts_load, charts_moves
from loadmanager.history.report.drawing import Chart, Drawn, draw
from loadmanager.history.report.material import Material
from loadmanager.history.report.tables import advice, failovers, figures, gaps, settings
from loadmanager.history.report.template import PAGE

CHARTS: tuple[Callable[[Material], Chart], ...] = (
    charts_load.heat_map,
    charts_load.imbalance,
    charts_moves.transfers,
    charts_moves.gaps,
    charts_future.forecast,
    charts_future.replay,
    charts_future.capacity,
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


_CODE = re.compile("`([^`]*)`")


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
    html = Template(PAGE).substitute(
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
