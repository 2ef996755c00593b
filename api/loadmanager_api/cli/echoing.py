"""The one place where commands write to a terminal, without control characters.

Text from outside (reasons, names, authors, services' answers) may hold characters that a terminal obeys instead of
showing: they are shown as Python writes them, `\\x1b`.
"""

from __future__ import annotations

import re

import click

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
