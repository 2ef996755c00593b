"""Groups of commands: whole sentences in their lists, and a reason for each command that only pulsar-admin has."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches

import click

from loadmanager_api.cli.client import Failed

_OTHER_GROUPS = re.compile(
    "bookies|documents|functions(-worker)?|packages|proxy-stats|resourcegroups|schemas|sinks?|sources?|topicPolicies"
    "|transactions"
)

_NO_DATA = (
    "a load manager knows where a topic is served, not what is in it. "
    "Ask the service at the address that `loadmanager topics lookup TOPIC` shows"
)
_REASONS = {
    "broker-stats": "a broker of the load manager is no Java process. `loadmanager doctor` collects what it knows",
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
