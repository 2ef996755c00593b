"""Shows answers: as tables for people, as JSON for programs. A row is one line, however long: names stay whole."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import click

from api.cli.options import Remote

_WIDTH = 1_000


def show(
    remote: Remote, answer: Any, columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str = "none"
) -> None:
    """The answer as it came, or a table of the rows; `empty` says that there are none."""
    if remote.output == "json":
        click.echo(json.dumps(answer, indent=2))
    elif not rows:
        click.echo(empty, err=True)
    else:
        _table(columns, rows)


def show_pairs(remote: Remote, answer: Any, pairs: Sequence[tuple[str, object]]) -> None:
    """The answer as it came, or its parts below each other."""
    if remote.output == "json":
        click.echo(json.dumps(answer, indent=2))
        return
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        click.echo(f"{name.ljust(width)}  {cell(value)}")


def done(remote: Remote, text: str, **facts: object) -> None:
    """Something was done: a sentence, or its facts."""
    click.echo(json.dumps(facts) if remote.output == "json" else text)


def cell(value: object) -> str:
    """How a value looks to people."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}"
        case dict() | list():
            return json.dumps(value)
        case _:
            return str(value)


def age(at_ms: int) -> str:
    """How long ago, in the unit that says most: 12s, 5m, 3h, 2d."""
    seconds = max(0, round(time.time() - at_ms / 1000))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich import box  # takes longer to import than many a command to run
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    numeric = [
        all(isinstance(row[i], int | float) and not isinstance(row[i], bool) for row in rows)
        for i in range(len(columns))
    ]
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    Console(width=_WIDTH, highlight=False, markup=False, emoji=False).print(table)
