"""Groups of commands, which import a subcommand's module when it is used, so that the command line starts quickly.

Their lists have whole sentences. What only pulsar-admin has is refused with a reason; after a mistyped command, choice
or name, near matches are shown.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from difflib import get_close_matches
from typing import Any

import click

from loadmanager.errors import MissingExtra
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.printing import visible

_PACKAGE = __name__.rpartition(".")[0]


def with_nearest(message: str, name: str, known: Iterable[str]) -> str:
    """The message, with those of the known names that are near to this one."""
    near = get_close_matches(name, list(known))
    return f"{message.rstrip('.')}. Did you mean {' or '.join(map(repr, near))}?" if near else message


def with_near_choices(error: click.UsageError) -> str:
    """The message of wrong usage, with the nearest commands or choices where click adds none."""
    message, group = error.message, error.ctx.command if error.ctx else None
    if "Did you mean" in message:  # an inner group has said so
        return message
    if getattr(error, "possibilities", None):  # a newer click's own
        return message
    if message.startswith("No such command") and error.ctx and isinstance(group, click.Group):
        unknown = _quoted(message)
        told = with_nearest(message, unknown, group.list_commands(error.ctx))
        return told if told != message or not isinstance(group, LazyGroup) else group.with_inner(error.ctx, message)
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param else None
    if isinstance(kind, click.Choice):
        return with_nearest(message, _quoted(message), [str(choice) for choice in kind.choices])
    return message


def _quoted(message: str) -> str:
    """What stands between the first quotes."""
    return message.split("'")[1] if message.count("'") >= 2 else ""


_OTHER_GROUPS = re.compile(
    "bookies|documents|functions(-worker)?|packages|proxy-stats|resourcegroups|schemas|sinks?|sources?|topicPolicies"
    "|transactions"
)

_NO_DATA = (
    "a load manager knows where a topic is served, not what is in it. "
    "Ask the service at the address that `loadmanager topics lookup TOPIC` shows"
)
_REASONS = {
    "broker-stats": "a broker of the load manager is not a Java process. `loadmanager doctor` collects what it knows",
    "brokers": "a load manager keeps no messages, and so has no backlog",
    "clusters": "there is one cluster here; its brokers are started with its name (`loadmanager broker --cluster`)",
    "namespaces": "a namespace has bundles and rules for their places here: see `loadmanager policies --help`; "
    "what else Pulsar sets for a namespace belongs to the service",
    "resource-quotas": "nothing is limited by a quota here; loads are measured: `loadmanager bundles show`",
    "topics": _NO_DATA,
}
"""Why a group lacks commands that pulsar-admin has in it."""

_FOREIGN = {
    "broker-stats": re.compile("allocator-stats|mbeans"),
    "brokers": re.compile("backlog-quota-check"),
    "clusters": re.compile("(create|update|delete)|(get|update)-(peer-clusters|cluster-migration)|get-peer-clusters"),
    "namespaces": re.compile(
        "(set|get|remove|delete|clear|grant|revoke|update|subscription)-[a-z-]+|permissions|unsubscribe"
    ),
    "resource-quotas": re.compile("set|reset-namespace-bundle-quota"),
    "topics": re.compile(
        "(set|get|remove|update|grant|revoke|create|reset|partitioned|expire|peek|examine|analyze|compaction|info"
        "|last|offload|stats|trim)-[a-z-]+|clear-backlog|compact|offload|permissions|skip|stats|subscriptions"
        "|terminate|truncate|unsubscribe"
    ),
}
"""By group, patterns of the names of those commands."""

_WHOLE = 1_000
_MOST_NAMED = 4
_ALMOST = 0.9
"""How alike a name of ours has to be, to take the typed one for a mistyped name rather than for Pulsar's."""


class Group(click.Group):
    """A group whose help cuts no sentence, and that says why it lacks a command of pulsar-admin."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does. Raises Failed for a command that only Pulsar has."""
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            refuse_foreign(None if ctx.parent is None else self.name, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, but no sentence is cut."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(_WHOLE)) for name, each in found if each is not None])


def refuse_foreign(group: str | None, name: str, known: Collection[str]) -> None:
    """Raise Failed if pulsar-admin has the command `name` in the group (None: it is a group itself).

    Not if the name is almost one of the `known` ones.
    """
    if group is None:
        if _OTHER_GROUPS.fullmatch(name):
            raise Failed(f"`{name}` is not here: {_NO_DATA}")
    elif (
        (foreign := _FOREIGN.get(group))
        and foreign.fullmatch(name)
        and not get_close_matches(name, known, cutoff=_ALMOST)
    ):
        raise Failed(f"`{group} {name}` is not here: {_REASONS[group]}")


Table = Mapping[str, tuple[str, str, str]]
"""Name: (module below this package, the click command in it, one line for the overview)."""


class LazyGroup(Group):
    """Imports a subcommand when it is used, not to list it. Its list has sections; one without a title is not indented.

    `aliases` has other names of commands, which no list shows.
    """

    def __init__(
        self, *args: Any, sections: Mapping[str, Table], aliases: Mapping[str, str] = {}, **given: Any
    ) -> None:
        super().__init__(*args, **given)
        self._sections = sections
        self._table = {name: row for section in sections.values() for name, row in section.items()}
        self._aliases = aliases

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand. What click is to show of its failure has no password in it, and nothing that a terminal
        would obey. An extra that is missing is such a failure."""
        try:
            return super().invoke(ctx)
        except MissingExtra as missing:
            raise Failed(str(missing)) from None
        except click.ClickException as error:
            from loadmanager.diagnostics.redaction import redact_text

            if isinstance(error, click.UsageError):
                vars(error)["message"] = with_near_choices(error)
            vars(error)["message"] = redact_text(visible(error.message))
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        name = self._aliases.get(cmd_name, cmd_name)
        if name not in self._table:
            return None
        module, attribute, _ = self._table[name]
        command: click.Command = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), attribute)
        return command

    def with_inner(self, ctx: click.Context, message: str) -> str:
        """The message about an unknown command, with the groups that have it: `bundles move`. It imports all."""
        unknown, found = _quoted(message), list[str]()
        for name in self._table:
            group = self.get_command(ctx, name)
            if isinstance(group, click.Group) and group.get_command(click.Context(group, parent=ctx), unknown):
                found.append(f"'{name} {unknown}'")
        return f"{message.rstrip('.')}. Did you mean {' or '.join(found[:_MOST_NAMED])}?" if found else message

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            for title, table in self._sections.items():
                with formatter.section(title) if title else nullcontext():
                    formatter.write_dl([(name, line) for name, (_, _, line) in table.items()])
