"""The `loadmanager` command. Subcommands are modules that are imported when they are used: it starts at once."""

from __future__ import annotations

import importlib

import click

from api.cli.options import Remote, remote_options

EXIT_CODES = """Exit codes: 0 done; 1 refused, or failed; 2 wrong usage; 3 not now: no broker answers, or it has no
answer yet (503)."""

COMMANDS = {
    "broker": ("api.cli.broker", "broker", "Run a broker process."),
    "brokers": ("api.cli.brokers", "brokers", "Members of the cluster, the leader, drains."),
    "bundles": ("api.cli.bundles", "bundles", "Which bundles there are, and whose."),
    "channel": ("api.cli.channel", "channel", "The bundle-state channel of one broker."),
    "demo": ("api.cli.demo", "demo", "A whole cluster at work, here and now."),
    "namespaces": ("api.cli.namespaces", "namespaces", "Create, delete, list, unload."),
    "sim": ("api.cli.sim", "sim", "Simulate the cluster with faults, from seeds."),
    "topics": ("api.cli.topics", "topics", "Where topics are served; move them."),
}
"""Name: (module, the click command in it, one line for the overview)."""


class LazyGroup(click.Group):
    """Imports a subcommand when it is asked for, and not to list them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@remote_options
@click.version_option(package_name="loadmanager")
@click.pass_context
def main(ctx: click.Context, admin_url: str | None, output: str | None) -> None:
    """Who owns which bundle, in a cluster of brokers: ask, move, drain, and run one."""
    ctx.obj = Remote().with_options(admin_url, output)
