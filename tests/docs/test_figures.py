"""Figures on other pages are those of docs/benchmarks.md."""

from __future__ import annotations

import re

import pytest

from tests.pages import ROOT

KILL, KILL_MANY = "SIGKILL of an owner", "SIGKILL of an owner of 10,000 of 30,000 bundles"
SQLITE, KAFKA = 1, 2
QUOTED = [
    (KILL, KAFKA, "README.md", r"\*\*Fail-over: ([\d.]+ s)\*\*"),
    (KILL, KAFKA, "README.md", r"when ([\d.]+ s) of silence after a crash"),
    (KILL_MANY, KAFKA, "README.md", r"([\d.]+ s) for 10,000 bundles"),
    ("SIGTERM of an owner", KAFKA, "README.md", r"SIGTERM: ([\d.]+ s)"),
    (KILL, KAFKA, "docs/deployment.md", r"after `kill -9` \| ([\d.]+ s)"),
    (KILL_MANY, KAFKA, "docs/deployment.md", r"([\d.]+ s) with 10,000 bundles"),
    (KILL, KAFKA, "docs/deployment.md", r"its bundles are served again after ([\d.]+ s)"),
    (KILL, KAFKA, "docs/deployment.md", r"a failover of ([\d.]+ s)"),
    (KILL, KAFKA, "docs/sidecar.md", r"serve its bundles after ([\d.]+ s)"),
    (KILL, KAFKA, "docs/testing-your-service.md", r"by default after ([\d.]+ s)"),
    (KILL, KAFKA, "docs/wire-contract.md", r"\n   ([\d.]+ s)\."),
    ("time without an owner in a transfer, p50", KAFKA, "docs/deployment.md", r"on Kafka \| ([\d.]+ ms) \(p50\)"),
    ("time without an owner in a transfer, p50", KAFKA, "docs/pip-192.md", r"([\d.]+ ms) without an owner"),
    (
        "the same, one move after another under load, p99",
        KAFKA,
        "docs/deployment.md",
        r"([\d.]+ ms) \(p99 under load\)",
    ),
    ("the same, eight moves at once under load, p99", KAFKA, "docs/deployment.md", r"([\d.]+ ms) with eight moves"),
    ("lookups of one broker, 1 connection", SQLITE, "docs/deployment.md", r"([\d,]+/s) on one connection"),
    ("lookups of one broker, 16 connections", SQLITE, "docs/deployment.md", r"([\d,]+/s) on sixteen"),
    ("resident memory then", SQLITE, "docs/deployment.md", r"1,000 bundles \| (\d+ MiB)"),
    ("resident memory then", KAFKA, "docs/deployment.md", r"(\d+ MiB) on Kafka"),
    ("memory for each of a million bundles", SQLITE, "docs/deployment.md", r"every broker \| (\d+ bytes)"),
    ("table of 1,000,000 bundles from snapshots", SQLITE, "docs/deployment.md", r"a million bundles \| ([\d.]+ s)"),
    ("failed, lost or doubled requests in 10,000 planned moves under traffic", KAFKA, "README.md", r"One number: (\d)"),
]
"""Row and column of the benchmarks' page; the page that quotes the figure, and where."""


def cells() -> dict[str, list[str]]:
    """Rows by their first cell, without its target."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:2] == "| "]
    return {re.sub(r" \(target .*\)$", "", row[0]): row for row in rows}


@pytest.mark.parametrize(("row", "column", "page", "pattern"), QUOTED)
def test_a_page_quotes_the_figure_of_the_benchmarks(row: str, column: int, page: str, pattern: str) -> None:
    quoted = re.findall(pattern, (ROOT / page).read_text(encoding="utf-8"))
    assert quoted, f"{page} has no {pattern!r}"
    assert set(quoted) == {cells()[row][column]}
