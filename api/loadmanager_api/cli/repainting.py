"""`--watch`: runs a command again and again; in a terminal each time on a clean screen, else whenever it changed."""

from __future__ import annotations

import io
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import click

from loadmanager_api.cli.client import NotNow
from loadmanager_api.cli.printing import echoed, one_line

CLEAR = "\x1b[H\x1b[2J"
_WORDS = re.compile(r"(\x1b\[[0-9;]*m)")


class Screen(io.StringIO):
    """What a command prints, which looks like the terminal that it will be shown on."""

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


def repaint(work: Callable[[], Any], interval_s: float) -> None:
    """Until it is interrupted; a broker that does not answer is waited for. Raises Failed."""
    shown = None
    try:
        while True:
            text = _output(work)
            if sys.stdout.isatty():
                echoed(CLEAR + _cropped(text, *shutil.get_terminal_size()))
            elif text != shown:
                echoed(text)
            shown = text
            time.sleep(interval_s)
    except (KeyboardInterrupt, click.Abort):
        echoed("\n" if sys.stdout.isatty() else "")
    except BrokenPipeError:
        return


def _output(work: Callable[[], Any]) -> str:
    screen = Screen()
    try:
        with redirect_stdout(screen), redirect_stderr(screen):
            work()
    except NotNow as error:
        return f"{one_line(error.message)}; trying again\n"
    except SystemExit:  # the command has said why its exit code would not be 0
        pass
    return screen.getvalue()


def _cropped(text: str, columns: int, lines: int) -> str:
    """What fits on the screen, with the number of lines that do not."""
    found = [_cut(line, columns) for line in text.splitlines()]
    if len(found) < lines:
        return "\n".join([*found, ""])
    return "\n".join([*found[: lines - 2], f"… {len(found) - lines + 2} more lines", ""])


def _cut(line: str, columns: int) -> str:
    """Its first characters; what makes text bold has no width."""
    kept, left = "", columns
    for part in _WORDS.split(line):
        if part.startswith("\x1b"):
            kept += part
        else:
            kept += part[:left]
            left -= len(part[:left])
    return kept
