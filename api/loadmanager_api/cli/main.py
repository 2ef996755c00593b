"""The `loadmanager` command. Subcommands are modules that are imported when they are used: it starts at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from loadmanager_api.cli.command_group import LazyGroup, Table
from loadmanager_api.cli.options import remote_options
from loadmanager_api.cli.remote import Typed
from statechannel.runtime.tracebacks import write_tracebacks

EXIT_CODES = """Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 try again later: no broker answers, or the
broker cannot answer yet (503)."""

SECTIONS: Mapping[str, Table] = {
    "Run": {
        "broker": ("broker", "broker", "Run a broker process."),
        "sidecar": ("broker", "sidecar", "Run a broker beside a service in another language."),
        "check": ("diagnosis", "check", "Check whether a broker with these settings would run well."),
        "conformance": ("conformance", "conformance", "Try a service in another language, as its sidecar."),
        "demo": ("demo", "demo", "Run a demo cluster on this machine."),
        "playground": ("playground", "playground", "Compare balancing strategies on generated or recorded loads."),
        "migrate": ("stores", "migrate", "Move a stopped cluster to another log."),
    },
    "Look": {
        "top": ("top.command", "top", "Show brokers, bundles and moves live, and change them with keys."),
        "brokers": ("brokers", "brokers", "List brokers, show the leader, drain brokers."),
        "topics": ("namespaces", "topics", "Show where topics are served, and move them."),
        "channel": ("channel", "channel", "Inspect the channel, back it up, restore it."),
        "health": ("diagnosis", "health", "Show what is wrong in the cluster, and what to do about it."),
        "audit": ("audit", "audit", "Show who changed what, and what was refused."),
        "operations": ("audit", "operations", "Show changes sent with a key; cancel them."),
        "doctor": ("diagnosis", "doctor", "Collect a support bundle of the cluster, without secrets."),
        "version": ("pulsar", "version", "Show the release of the asked broker."),
    },
    "Move": {
        "bundles": ("bundles", "bundles", "List, move, pin, exclude and quarantine bundles."),
        "namespaces": ("namespaces", "namespaces", "Create, list and unload namespaces; split and merge bundles."),
        "unload": ("plans", "unload", "Unload a whole namespace or broker, in waves."),
        "policies": ("policies", "policies", "Show, set and delete policies of every kind."),
        "config": ("config", "config", "Show settings, and change them while brokers run."),
    },
    "Explain": {
        "explain": ("explanations", "explain", "Explain why a bundle is where it is, or why a broker has what it has."),
        "decisions": ("explanations", "decisions", "Show the rounds of balancing, and their reasons."),
        "what-if": ("plans", "what_if", "Show what a round would decide under other conditions."),
        "splitting": ("bundles", "splitting", "Show splits, merges, quarantines, and why others did not happen."),
    },
    "Balance": {
        "balancing": ("plans", "balancing", "Show the state of balancing."),
        "pause": ("plans", "pause", "Pause automatic moves."),
        "resume": ("plans", "resume", "End a pause."),
        "plans": ("plans", "plans", "Propose, approve, run, verify and undo changes; also advice."),
    },
    "Consumer groups": {
        "groups": ("groups", "groups", "Show consumer groups and their backlog; reset offsets."),
    },
    "Load history": {
        "history": ("load_history.group", "history", "Analyse the load history on Spark: ingest, replay, advise …"),
    },
    "As in pulsar-admin": {
        "broker-stats": ("pulsar", "broker_stats", "Show load and metrics of the asked broker."),
        "clusters": ("policies", "clusters", "Show the cluster, manage failure domains."),
        "ns-isolation-policy": ("policies", "isolation", "Bind namespaces to brokers, as in pulsar-admin."),
        "resource-quotas": ("pulsar", "resource_quotas", "Show the mean load of bundles."),
        "tenants": ("pulsar", "tenants", "List tenants."),
    },
    "This command line": {
        "context": ("context", "context", "Name clusters, and choose which one commands ask."),
        "completion": ("completion", "completion", "Print the script for shell completion."),
    },
}
COMMANDS: Table = {name: row for section in SECTIONS.values() for name, row in section.items()}
ALIASES = {"advice": "plans", "plan": "plans"}
"""Other names of commands. They work, and no list shows them."""


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    aliases=ALIASES,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@remote_options
@click.version_option(package_name="loadmanager")
@click.pass_context
def main(ctx: click.Context, **typed: Any) -> None:
    """Ask a cluster who owns which bundle, move bundles, drain brokers, and run a broker."""
    write_tracebacks()
    ctx.obj = Typed(**typed)
