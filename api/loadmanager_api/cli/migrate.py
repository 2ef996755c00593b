"""`loadmanager migrate`: a cluster that has stopped goes on upon another log."""

from __future__ import annotations

from typing import Any

import click

from loadmanager.broker.wiring import auditors
from loadmanager.channel.migration.export import Export
from loadmanager.channel.migration.move import Moved
from loadmanager.settings import Settings
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.configuring import of_the_old_side, pairs, settings_of, settings_options
from loadmanager_api.cli.moving import check_new_log, say, show_moved, terms_of, wait_option
from loadmanager_api.cli.options import confirm, rewrites
from loadmanager_api.cli.printing import done
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.stores import check_there, coordination_of, log_of, opened, working


@click.command()
@click.option("--from-log", required=True, metavar="ADDRESS", help="Old log: sqlite:FILE or kafka://…")
@click.option(
    "--from-coordination",
    metavar="ADDRESS",
    help="Old coordination: sqlite:FILE or zookeeper://…  [default: beside a SQLite --from-log]",
)
@click.option(
    "--from-set", "old_more", multiple=True, metavar="NAME=VALUE", help="Setting of the old cluster alone; repeatable."
)
@wait_option
@settings_options
@rewrites
def migrate(
    remote: Remote,
    from_log: str,
    from_coordination: str | None,
    old_more: tuple[str, ...],
    wait_s: float,
    more: tuple[str, ...],
    **given: Any,
) -> None:
    """Move a cluster to another log and coordination service: from SQLite to Kafka and ZooKeeper, or any other way.

    Stop the brokers first. The command first checks what can fail; then it closes the old log for good, copies it, and
    compares the copy. Every bundle keeps the name of its owner, every token grows. After an interruption run the same
    command again.
    """
    new = settings_of(given, more)
    earlier = {"log": from_log, "coordination": from_coordination, **of_the_old_side(), **pairs(old_more, "--from-set")}
    old = settings_of({**given, "log": None, "coordination": None, **earlier}, more)
    if log_of(old) == log_of(new):
        raise Failed(f"the channel is in {log_of(new)} already: name another log with --log")
    if coordination_of(old) == coordination_of(new):
        raise Failed(f"{coordination_of(new)} belongs to the old log: name another with --coordination")
    check_there(old.log, "--from-log")
    check_there(coordination_of(old), "--from-coordination")
    confirm(remote, f"This closes {log_of(old)} for good, and moves the cluster to {log_of(new)}")
    if remote.dry_run:
        export = working(_movable(old, new))
        what = f"{export.bundles} bundles would move from {log_of(old)} to {log_of(new)}"
        text = f"nothing was changed; without --dry-run {what}"
        done(remote, text, dry_run=True, bundles=export.bundles, **{"from": log_of(old), "to": log_of(new)})
        return
    moved = working(_migrated(old, new, wait_s))
    show_moved(remote, moved)


async def _movable(old: Settings, new: Settings) -> Export:
    """What would be moved, if the new stores are ready for it. Raises Conflict."""
    from loadmanager.channel.migration.move import cause_of_move, movable

    await _check(new)
    async with opened(old) as source:
        export = await movable(source, terms_of(new, old, 0.0), log_of(new))
    await check_new_log(new, cause_of_move(export.cluster_identity), export.cluster_identity.generation + 1)
    return export


async def _migrated(old: Settings, new: Settings, wait_s: float) -> Moved:
    from loadmanager.channel.migration.move import migrate
    from loadmanager.diagnostics.check.topics import topics_of

    await _check(new)
    async with opened(old) as source, opened(new) as target:
        return await migrate(source, target, terms_of(new, old, wait_s), topics_of(new), say=say)


async def _check(new: Settings) -> None:
    """What `loadmanager check` finds at the new stores. Raises Conflict."""
    from loadmanager.diagnostics.check.round import check
    from loadmanager.errors import Conflict
    from statechannel.audit import Severity

    findings = await check(new, auditors(new))
    errors = [f"{f.subject}: {f.found} -> {f.advice}" for f in findings if f.severity is Severity.ERROR]
    if errors:
        raise Conflict("\n  ".join(("the new stores are not ready (see `loadmanager check`):", *errors)))
