"""The one place where commands write to a terminal: tables for people, JSON or YAML for programs.

Text from outside (reasons, names, authors, services' answers) may hold characters that a terminal obeys instead of
showing: they are shown as Python writes them, `\x1b`. A row is one line, however long: names stay whole. In a
terminal only rows don't wrap.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any, cast

import click

from loadmanager_api.cli.remote import Remote

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x80-\x9f"  # control characters but tabs and line ends; the one at 0x7f does nothing
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # order of writing, what has no width, line ends
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def echo(text: str = "", *, err: bool = False, nl: bool = True, bold: bool = False, dim: bool = False) -> None:
    """Print it, with nothing in it that a terminal would obey. JSON stays as it is: it has none of these characters."""
    text = visible(text)
    click.echo(click.style(text, bold=bold or None, dim=dim or None) if bold or dim else text, err=err, nl=nl)


def echoed(text: str) -> None:
    """Print what `echo` has printed into a buffer, and our own movements of the cursor."""
    click.echo(text, nl=False)


def visible(text: str) -> str:
    """The text with escapes in place of characters that a terminal obeys. Tabs and line ends stay."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """The same, on one line: a line end in a name could fake a line of ours."""
    return visible(text).replace("\t", " ").replace("\n", "\\n")


_WIDTH = 1_000
_TRAILING_BLANKS = re.compile(r"(?<! ) +((?:\x1b\[[0-9;]*m)*)$")
"""Before the end of what is bold, too."""


def show(
    remote: Remote,
    answer: Any,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    empty: str = "none",
    *,
    wide: int = 0,
) -> None:
    """The answer for programs, or a table of the rows; `empty` is printed if there are none.

    The last `wide` columns are shown with `-o wide` alone.
    """
    if not remote.for_people:
        show_answer(remote, answer)
    elif not rows:
        if empty:
            echo(empty, err=True)
    else:
        shown = len(columns) - (wide if remote.output != "wide" else 0)
        _table(columns[:shown], [row[:shown] for row in rows])


def show_pairs(remote: Remote, answer: Any, pairs: Sequence[tuple[str, object]]) -> None:
    """The answer for programs, or its parts below each other."""
    if not remote.for_people:
        show_answer(remote, answer)
        return
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        echo(f"{one_line(name).ljust(width)}  {cell(value)}")


def done(remote: Remote, text: str, **facts: object) -> None:
    """Report success: a sentence, or its facts for programs."""
    echo(text) if remote.for_people else show_answer(remote, facts, indent=None)


def show_answer(remote: Remote, answer: Any, indent: int | None = 2) -> None:
    """The answer as YAML or JSON, with nothing but ASCII in it."""
    if remote.output == "yaml":
        import yaml

        echo(yaml.safe_dump(answer, sort_keys=False, width=_WIDTH), nl=False)
    else:
        echo(json.dumps(answer, indent=indent))


def cell(value: object) -> str:
    """How a value looks to people: on one line, with nothing that a terminal would obey."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}"
        case list() if all(isinstance(each, str) for each in cast("list[object]", value)):
            return one_line(", ".join(cast("list[str]", value))) or "-"
        case dict() | list():
            return json.dumps(value)
        case _:
            return one_line(str(value))


def age(at_ms: int) -> str:
    """How long ago, in the unit that says most: 12s, 5m, 3h, 2d."""
    seconds = max(0, round(time.time() - at_ms / 1000))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich import box  # takes longer to import than many commands take to run
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    numeric = [
        all(row[i] is None or (isinstance(row[i], int | float) and not isinstance(row[i], bool)) for row in rows)
        for i in range(len(columns))
    ]
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    console = Console(width=_WIDTH, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    for number, line in enumerate(captured.get().splitlines()):
        # What only fills a line up would wrap in a terminal that is narrower than the table: blanks, and the rule.
        click.echo(line[: terminal_columns()] if number == 1 else _TRAILING_BLANKS.sub(r"\1", line))


def hanging(begin: str, margin: str, text: str) -> str:
    """The text behind `begin`; in a terminal wrapped at words, its further lines behind the margin."""
    text, columns = one_line(text), terminal_columns()
    if columns is None or columns < len(margin) + 20:
        return begin + text
    return textwrap.fill(
        text, columns, initial_indent=begin, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )


def terminal_columns() -> int | None:
    """How wide the terminal is; None if people don't look at one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
