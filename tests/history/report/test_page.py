"""The page: whole without any network, safe whatever brokers are called, and honest where there is nothing to draw."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from loadmanager.history.report import Made, failovers, figures, made, title_of
from loadmanager.history.report.charts import capacity, duration, imbalance, natural, replay, stacked
from loadmanager.history.report.material import BUCKETS, Found, Span, bucket_s
from tests.history.report.made_up import BEGIN, MADE, NAMES, found, material

EVIL = '<script src="//x">&"'
FROM_OUTSIDE = ("src", "href", "xlink:href", "srcset", "action", "data", "poster")


class Reader(HTMLParser):
    """What a browser would fetch, and which elements there are."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [
            value or "" for name, value in attrs if name in FROM_OUTSIDE and not (value or "").startswith("#")
        ]
        self.ids += [value or "" for name, value in attrs if name == "id"]


@pytest.fixture(scope="module")
def week() -> Made:
    """A week of twelve brokers, one of which has a name that wants to be markup."""
    week = material()
    cells = [{**cell, "broker": EVIL} if cell["broker"] == NAMES[0] else cell for cell in week.cells]
    failovers = [{**row, "broker": EVIL} for row in week.failovers]
    return made(msgspec.structs.replace(week, cells=cells, failovers=failovers), MADE)


@pytest.mark.slow
def test_it_needs_nothing_from_anywhere(week: Made):
    assert Reader(week.html).fetched == []
    assert not re.search(r"url\((?!#)|@import|https?://|fetch\(|XMLHttp|WebSocket|import\(", week.html)


@pytest.mark.slow
def test_every_picture_is_in_it_and_a_file(week: Made):
    names = {"heat-map", "imbalance", "transfers", "gaps", "forecast", "replay", "capacity"}
    assert names <= set(Reader(week.html).ids)
    assert set(week.pictures) == names
    assert all(png.startswith(b"\x89PNG") for png in week.pictures.values())


@pytest.mark.slow
def test_names_are_text_and_never_markup(week: Made):
    assert EVIL not in week.html
    assert Reader(week.html).tags.count("script") == 1


@pytest.mark.slow
def test_text_takes_the_colours_of_the_page_so_that_it_can_be_read_in_the_dark(week: Made):
    assert 'fill="var(--muted)"' in week.html
    assert "prefers-color-scheme: dark" in week.html
    assert not re.search(r'<text[^>]*fill="#', week.html)


def test_it_says_where_it_comes_from_and_what_to_do(week: Made):
    assert "from the lake east" in week.html
    assert "decision 41" in week.html
    assert "loadmanager config set balancing_tolerance tight" in week.html
    assert "In 31 of 42 windows &lt;plan&gt;" in week.html


def test_its_size_stays_small(week: Made):
    assert len(week.html) < 4 << 20


@pytest.mark.slow
def test_where_nothing_happened_it_says_so_and_draws_no_empty_picture():
    empty = ("rounds", "moves", "gap_shares", "gaps", "failovers", "history", "forecast", "capacity")
    calm = made(material(**{name: list[Any]() for name in empty}, found=Found()), MADE)
    assert set(calm.pictures) == {"heat-map", "imbalance"}
    assert "<code>loadmanager history replay</code>" in calm.html
    for text in ("No bundle moved", "Not replayed yet", "not audited yet", "loadmanager history advise"):
        assert text in calm.html


@pytest.mark.slow
def test_a_violation_of_the_audit_is_not_called_clean():
    audit = found().audit
    assert audit is not None
    broken = msgspec.structs.replace(audit, facts={"violations": 2})
    shown = made(material(found=msgspec.structs.replace(found(), audit=broken)), MADE).html
    assert "violations in the audit" in shown
    assert "the audit is clean" not in shown


def test_titles_tell_what_is_seen():
    level = {"at": BEGIN, "mean": 0.4, "max": 0.5, "std": 0.1, "broker": "b:1", "brokers": 2}
    even = {**level, "at": BEGIN + timedelta(hours=1), "max": 0.42}
    assert imbalance(material(levels=[level, even])).title == (
        "The fullest broker was at most 1.25 times the mean (Mon 28 Jan, 00:00), and beyond tolerance 50% of the time"
    )
    idle = {**level, "mean": 0.01, "max": 0.04}
    assert imbalance(material(levels=[idle])).title == "Nothing to balance: no broker was above 5%"
    assert replay(material()).title.startswith("plan:balancing_tolerance=tight costs least")


def test_the_line_ends_where_nobody_reported_and_goes_on_after_it():
    level = {"at": BEGIN, "mean": 0.4, "max": 0.5, "std": 0.1, "broker": "b:1", "brokers": 2}
    hours = [
        {**level, "at": BEGIN + timedelta(hours=hour), "max": high} for hour, high in ((0, 0.5), (1, 0.6), (4, 0.7))
    ]
    spec = imbalance(material(levels=hours)).spec
    assert spec is not None
    upper = spec["vconcat"][0]
    rows = upper["data"]["values"] if "data" in upper else upper["layer"][0]["data"]["values"]
    first = round(BEGIN.timestamp() * 1000)
    assert [((row["at"] - first) // 3_600_000, row["max"]) for row in rows] == [
        (0, 0.5), (1, 0.6), (2, 0.6), (2, None), (4, 0.7), (5, 0.7), (5, None),
    ]  # fmt: skip


def test_how_many_brokers_were_lost_does_not_depend_on_how_many_are_listed():
    one = material().failovers[0]
    many = material(failovers=[one] * 20, lost=57)
    assert "<b>57</b><span>brokers lost</span>" in figures(many)
    assert "49 earlier ones" in failovers(many)


def test_idle_brokers_are_not_called_uneven():
    level = {"at": BEGIN, "mean": 0.01, "max": 0.04, "std": 0.1, "broker": "b:1", "brokers": 2}
    busy = {**level, "at": BEGIN + timedelta(hours=1), "mean": 0.4, "max": 0.5}
    for levels, over in (([level, busy], "1.25"), ([level], "1.00")):
        assert f"<b>{over}</b><span>fullest over mean, when busy</span>" in figures(material(levels=levels))


@pytest.mark.parametrize(
    ("begin", "end", "title"),
    [
        (BEGIN, BEGIN + timedelta(hours=5), "28 January 2030"),
        (BEGIN, BEGIN + timedelta(days=2), "28 to 30 January 2030"),
        (BEGIN, BEGIN + timedelta(days=7), "28 January to 4 February 2030"),
        (BEGIN - timedelta(days=40), BEGIN, "19 December 2029 to 28 January 2030"),
    ],
)
def test_the_heading_says_of_when_it_is(begin: datetime, end: datetime, title: str):
    assert title_of(material(span=Span(begin, end, 3600))) == f"Load history, {title}"


def test_costs_that_cannot_be_told_apart_are_pale():
    rows = [row | {"alone": 0.001 if row["term"] == "messages in" else row["alone"]} for row in material().capacity]
    chart = capacity(material(capacity=rows, kinds=5))
    assert "and 3 more kinds" in chart.title
    text = json.dumps(chart.spec)
    assert text.count('"opacity": 0.4') == 2
    assert "not separable from" in text


def test_a_model_that_explains_nothing_is_not_drawn():
    rows = [row | {"r2": 0.02} for row in material().capacity]
    assert capacity(material(capacity=rows)).spec is None
    mixed = [row | {"r2": 0.02} if row["kind"].startswith("4") else row for row in material().capacity]
    assert "4 cores" not in json.dumps(capacity(material(capacity=mixed)).spec)


def test_commands_in_a_note_are_code_and_pictures_are_not_blown_up(week: Made):
    assert "`" not in re.sub(r"<script>.*?</script>", "", week.html, flags=re.DOTALL)
    assert len(re.findall(r'<svg [^>]*width="100%" style="max-width: \d+px"', week.html)) == 7


def test_on_a_small_screen_pictures_stay_as_large_as_their_letters_need(week: Made):
    assert re.search(r"@media \(max-width: 48rem\) \{ figure \{ overflow-x: auto \} figure svg \{ min-width", week.html)


@pytest.mark.parametrize(
    ("days", "length_s"),
    [(40 / 86_400, 1), (1 / 24, 15), (1, 600), (7, 3_600), (60, 21_600), (400, 172_800), (4_000, 1_468_800)],
)
def test_however_long_the_time_there_are_only_so_many_steps(days: float, length_s: int):
    end = BEGIN + timedelta(days=days)
    assert bucket_s(BEGIN, end) == length_s
    assert (end - BEGIN).total_seconds() / length_s <= BUCKETS


def test_durations_are_in_the_unit_that_says_most():
    assert [duration(s) for s in (0.0243, 1.5, 90, 7_200, 200_000)] == ["24.3 ms", "1.5 s", "1.5 min", "2 h", "2.31 d"]


def test_names_sort_by_their_numbers():
    assert sorted(["b10:1", "b2:1", "a"], key=natural) == ["a", "b2:1", "b10:1"]


def test_bars_stand_on_each_other():
    rows = [{"at": 1, "moves": 2}, {"at": 2, "moves": 5}, {"at": 1, "moves": 3}]
    assert [(row["low"], row["high"]) for row in stacked(rows, "at", "moves")] == [(0, 2), (0, 5), (2, 5)]
