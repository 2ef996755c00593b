"""The `loadmanager` command. Subcommands are modules that are imported when they are used: it starts at once."""

from __future__ import annotations

from functools import partial

import click

from loadmanager_api.cli.lazy import LazyGroup
from loadmanager_api.cli.options import ADMIN_URL, Remote, remote_options

EXIT_CODES = """Exit codes: 0 done; 1 refused, or failed; 2 wrong usage; 3 not now: no broker answers, or it has no
answer yet (503)."""

COMMANDS = {
    "advice": ("loadmanager_api.cli.what_if", "plans", "The same as plans."),
    "balancing": ("loadmanager_api.cli.balancing", "balancing", "Where balance stands."),
    "broker": ("loadmanager_api.cli.broker", "broker", "Run a broker process."),
    "brokers": ("loadmanager_api.cli.brokers", "brokers", "Members of the cluster, the leader, drains."),
    "bundles": ("loadmanager_api.cli.bundles", "bundles", "Which bundles there are, and whose."),
    "clusters": ("loadmanager_api.cli.failure_domains", "clusters", "Failure domains, as pulsar-admin names them."),
    "ns-isolation-policy": ("loadmanager_api.cli.isolation", "isolation", "Which namespaces may be on which brokers."),
    "policies": ("loadmanager_api.cli.policies", "policies", "Every policy: show, set, delete, history, dry run."),
    "channel": ("loadmanager_api.cli.channel", "channel", "The bundle-state channel of one broker."),
    "check": ("loadmanager_api.cli.check", "check", "Whether a broker with these settings would run well."),
    "completion": ("loadmanager_api.cli.completion", "completion", "Let your shell complete commands and names."),
    "config": ("loadmanager_api.cli.config", "config", "Settings of the cluster, changed while brokers run."),
    "decisions": ("loadmanager_api.cli.decisions", "decisions", "The rounds of balancing, and why each did what."),
    "demo": ("loadmanager_api.cli.demo", "demo", "A whole cluster at work, here and now."),
    "doctor": ("loadmanager_api.cli.doctor", "doctor", "A support bundle of the cluster, without secrets."),
    "explain": (
        "loadmanager_api.cli.explain",
        "explain",
        "Why a bundle or broker is as it is, and what would change that.",
    ),
    "history": (
        "loadmanager_api.cli.load_history.group",
        "history",
        "Load history on Spark: ingest, analyse, replay, advise.",
    ),
    "migrate": ("loadmanager_api.cli.migrate", "migrate", "Move a stopped cluster to another log."),
    "namespaces": ("loadmanager_api.cli.namespaces", "namespaces", "Create, delete, list, unload, split, merge."),
    "pause": ("loadmanager_api.cli.balancing", "pause", "Begin no more automatic moves for now."),
    "plan": ("loadmanager_api.cli.what_if", "plans", "The same as plans."),
    "playground": (
        "loadmanager_api.cli.playground",
        "playground",
        "Balancing strategies against made-up or recorded loads.",
    ),
    "plans": (
        "loadmanager_api.cli.what_if",
        "plans",
        "Changes that are looked at first: propose, approve, run, verify, undo; advice too.",
    ),
    "resume": ("loadmanager_api.cli.balancing", "resume", "End a pause."),
    "splitting": (
        "loadmanager_api.cli.splitting",
        "splitting",
        "Splits, merges, quarantine: what happened, and why not.",
    ),
    "topics": ("loadmanager_api.cli.topics", "topics", "Where topics are served; move them."),
    "unload": ("loadmanager_api.cli.plans", "unload", "Unload a whole namespace or broker, in waves."),
    "what-if": ("loadmanager_api.cli.what_if", "what_if", "What would be decided if something were different."),
}
"""Name: (module, the click command in it, one line for the overview)."""


with_environment = partial(remote_options, envvar=ADMIN_URL)


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@with_environment
@click.version_option(package_name="loadmanager")
@click.pass_context
def main(ctx: click.Context, admin_url: str | None, output: str | None) -> None:
    """Who owns which bundle, in a cluster of brokers: ask, move, drain, and run one."""
    ctx.obj = Remote().with_options(admin_url, output)
