"""A click group that imports a subcommand's module when it is used, so that the command line starts quickly."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from loadmanager.errors import MissingExtra
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.echoing import visible
from loadmanager_api.cli.grouping import Group

Table = Mapping[str, tuple[str, str, str]]
"""Name: (module, the click command in it, one line for the overview)."""


class LazyGroup(Group):
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

            if isinstance(error, click.UsageError):
                from loadmanager_api.cli.near import with_near_choices

                vars(error)["message"] = with_near_choices(error)
            vars(error)["message"] = hide_text(visible(error.message))
            raise

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
