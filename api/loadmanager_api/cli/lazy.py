"""A click group that imports a subcommand's module when it is used, so that the command line starts quickly."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import click

from loadmanager.errors import MissingExtra
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.echoing import visible

Table = Mapping[str, tuple[str, str, str]]
"""Name: (module, the click command in it, one line for the overview)."""


class LazyGroup(click.Group):
    """Imports a subcommand when it is used, not to list it."""

    def __init__(self, *args: Any, table: Table, **given: Any) -> None:
        super().__init__(*args, **given)
        self._table = table

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand. What click is to show of its failure has no password in it, and nothing that a terminal
        would obey. An extra that is missing is such a failure."""
        try:
            return super().invoke(ctx)
        except MissingExtra as missing:
            raise Failed(str(missing)) from None
        except click.ClickException as error:
            from loadmanager.diagnostics.doctor.hiding import hide_text

            vars(error)["message"] = hide_text(visible(error.message))
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The subcommand that is named. Raises UsageError, with the nearest names, if there is none."""
        near = get_close_matches(args[0], self._table) if args[0] not in self._table else []
        if near and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, near))}?")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._table:
            return None
        module, attribute, _ = self._table[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in self._table.items()])
