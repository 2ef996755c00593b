"""The group `loadmanager history` and its commands, each a module that is imported when it is used."""

from __future__ import annotations

import click

from loadmanager_api.cli.command_group import LazyGroup

JOBS = "load_history."

COMMANDS = {
    "jars": (JOBS + "spark", "jars", "Download what Spark needs, once."),
    "ingest": (JOBS + "ingest", "ingest", "Copy new records of the log into the lake."),
    "analyse": (JOBS + "analyses", "analyse", "Analyse imbalance, hot bundles, transfers, outages, capacity …"),
    "sql": (JOBS + "sql", "sql", "Answer a question in SQL about the lake, without Spark."),
    "audit": (JOBS + "audit", "audit", "Judge every record of the channel again, and check every invariant."),
    "replay": (JOBS + "replay", "replay", "Replay the recorded load under other strategies and settings."),
    "advise": (JOBS + "analyses", "advise", "Advise settings and moves that would do better."),
    "report": (JOBS + "analyses", "report", "Draw one page with pictures that needs no network."),
    "serve": (JOBS + "spark", "serve", "Keep a session for commands with --remote, so that they answer at once."),
    "maintain": (JOBS + "ingest", "maintain", "Compact small files, delete what is too old."),
}


@click.group(cls=LazyGroup, sections={"": COMMANDS})
def history() -> None:
    """Keep load reports, state changes and decisions in a lakehouse, and analyse them. Needs the extra `history`.

    Begin with `jars`, then `ingest`. Each job works on the lake that --lake names, and publishes its results below the
    lake, for brokers to show.
    """
