"""The `loadmanager` command. Subcommands are modules that are imported when they are used: it starts at once."""

from __future__ import annotations

from typing import Any

import click

from loadmanager_api.cli.command_group import LazyGroup
from loadmanager_api.cli.options import remote_options
from loadmanager_api.cli.remote import Typed
from statechannel.runtime.tracebacks import write_tracebacks

EXIT_CODES = """Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 try again later: no broker answers, or the
broker cannot answer yet (503)."""

COMMANDS = {
    "advice": ("loadmanager_api.cli.plans", "plans", "Do the same as plans."),
    "audit": ("loadmanager_api.cli.audit", "audit", "Show who changed what, and what was refused."),
    "balancing": ("loadmanager_api.cli.plans", "balancing", "Show the state of balancing."),
    "broker": ("loadmanager_api.cli.broker", "broker", "Run a broker process."),
    "broker-stats": ("loadmanager_api.cli.pulsar", "broker_stats", "Show load and metrics of the asked broker."),
    "brokers": ("loadmanager_api.cli.brokers", "brokers", "List brokers, show the leader, drain brokers."),
    "bundles": ("loadmanager_api.cli.bundles", "bundles", "List, move, pin, exclude and quarantine bundles."),
    "channel": ("loadmanager_api.cli.channel", "channel", "Inspect the channel, back it up, restore it."),
    "check": ("loadmanager_api.cli.diagnosis", "check", "Check whether a broker with these settings would run well."),
    "clusters": ("loadmanager_api.cli.policies", "clusters", "Show the cluster, manage failure domains."),
    "completion": ("loadmanager_api.cli.completion", "completion", "Print the script for shell completion."),
    "config": ("loadmanager_api.cli.config", "config", "Show settings, and change them while brokers run."),
    "conformance": (
        "loadmanager_api.cli.conformance",
        "conformance",
        "Try a service in another language, as its sidecar.",
    ),
    "context": ("loadmanager_api.cli.context", "context", "Name clusters, and choose which one commands ask."),
    "decisions": ("loadmanager_api.cli.explanations", "decisions", "Show the rounds of balancing, and their reasons."),
    "demo": ("loadmanager_api.cli.demo", "demo", "Run a demo cluster on this machine."),
    "doctor": ("loadmanager_api.cli.diagnosis", "doctor", "Collect a support bundle of the cluster, without secrets."),
    "explain": (
        "loadmanager_api.cli.explanations",
        "explain",
        "Explain why a bundle is where it is, or why a broker has what it has.",
    ),
    "groups": (
        "loadmanager_api.cli.groups",
        "groups",
        "Show consumer groups and their backlog; reset offsets.",
    ),
    "history": (
        "loadmanager_api.cli.load_history.group",
        "history",
        "Analyse the load history on Spark: ingest, replay, advise …",
    ),
    "migrate": ("loadmanager_api.cli.stores", "migrate", "Move a stopped cluster to another log."),
    "namespaces": (
        "loadmanager_api.cli.namespaces",
        "namespaces",
        "Create, list and unload namespaces; split and merge bundles.",
    ),
    "ns-isolation-policy": (
        "loadmanager_api.cli.policies",
        "isolation",
        "Bind namespaces to brokers, as in pulsar-admin.",
    ),
    "operations": ("loadmanager_api.cli.audit", "operations", "Show changes sent with a key; cancel them."),
    "pause": ("loadmanager_api.cli.plans", "pause", "Pause automatic moves."),
    "plan": ("loadmanager_api.cli.plans", "plans", "Do the same as plans."),
    "plans": (
        "loadmanager_api.cli.plans",
        "plans",
        "Propose, approve, run, verify and undo changes; also advice.",
    ),
    "playground": (
        "loadmanager_api.cli.playground",
        "playground",
        "Compare balancing strategies on generated or recorded loads.",
    ),
    "policies": ("loadmanager_api.cli.policies", "policies", "Show, set and delete policies of every kind."),
    "resource-quotas": ("loadmanager_api.cli.pulsar", "resource_quotas", "Show the mean load of bundles."),
    "resume": ("loadmanager_api.cli.plans", "resume", "End a pause."),
    "sidecar": ("loadmanager_api.cli.broker", "sidecar", "Run a broker beside a service in another language."),
    "splitting": (
        "loadmanager_api.cli.bundles",
        "splitting",
        "Show splits, merges and quarantines, and why others did not happen.",
    ),
    "tenants": ("loadmanager_api.cli.pulsar", "tenants", "List tenants."),
    "top": (
        "loadmanager_api.cli.top.command",
        "top",
        "Show brokers, bundles and moves live, and change them with keys.",
    ),
    "topics": ("loadmanager_api.cli.namespaces", "topics", "Show where topics are served, and move them."),
    "unload": ("loadmanager_api.cli.plans", "unload", "Unload a whole namespace or broker, in waves."),
    "version": ("loadmanager_api.cli.pulsar", "version", "Show the release of the asked broker."),
    "what-if": ("loadmanager_api.cli.plans", "what_if", "Show what a round would decide under other conditions."),
}
"""Name: (module, the click command in it, one line for the overview)."""


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@remote_options
@click.version_option(package_name="loadmanager")
@click.pass_context
def main(ctx: click.Context, **typed: Any) -> None:
    """Ask a cluster who owns which bundle, move bundles, drain brokers, and run a broker."""
    write_tracebacks()
    ctx.obj = Typed(**typed)
