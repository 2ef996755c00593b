"""Near matches: what somebody may have meant who mistyped a command, a choice or a name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import click


def with_nearest(message: str, name: str, known: Iterable[str]) -> str:
    """The message, with those of the known names that are near to this one."""
    near = get_close_matches(name, list(known))
    return f"{message.rstrip('.')}. Did you mean {' or '.join(map(repr, near))}?" if near else message


def with_near_choices(error: click.UsageError) -> str:
    """The message of wrong usage, with the nearest commands or choices where click adds none."""
    message, command = error.message, error.ctx.command if error.ctx else None
    if getattr(error, "possibilities", None):  # a newer click's own
        return message
    if message.startswith("No such command") and isinstance(command, click.Group):
        return with_nearest(message, _quoted(message), _commands(command, error.ctx))
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param else None
    if isinstance(kind, click.Choice):
        return with_nearest(message, _quoted(message), [str(choice) for choice in kind.choices])
    return message


def _commands(group: click.Group, ctx: click.Context | None) -> Sequence[str]:
    return group.list_commands(ctx) if ctx else []


def _quoted(message: str) -> str:
    """What stands between the first quotes."""
    return message.split("'")[1] if message.count("'") >= 2 else ""
