"""`loadmanager channel export` and `channel import`: the channel as a file, for backup and restore."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.configuring import agreement_with, settings_of, settings_options
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.options import confirm, prints, rewrites
from loadmanager_api.cli.printing import done, show_pairs
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.stores import check_there, log_of, opened, opened_coordination, opened_log, working

if TYPE_CHECKING:
    from loadmanager.channel.migration.export import Export
    from loadmanager.channel.migration.move import Moved, Terms
    from loadmanager.settings import Settings

wait_option = click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=0.0,
    help="Seconds to wait until the brokers have left.  [default: 0]",
)
_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.command("export")
@_file
@click.option("--replace", is_flag=True, help="Replace a file of that name, atomically.")
@click.option("--closed", is_flag=True, help="Also export a log that was moved; only if the new log is lost.")
@settings_options
@prints
def export_command(
    remote: Remote,
    file: Path,
    replace: bool,
    closed: bool,
    more: tuple[str, ...],
    **given: Any,
) -> None:
    """Write the channel to FILE, directly from the log: who owns which bundle, and every token. FILE is the backup.

    Brokers may run meanwhile: then FILE has each namespace at one moment, but not all at the same moment.
    """
    from loadmanager.channel.migration.export import encode, write

    settings = settings_of(given, more)
    check_there(settings.log, "--log")
    if file.exists() and not replace:
        raise Failed(f"{file} exists already: choose another name, or give --replace")
    export = working(exported(settings))
    if export.moved_to is not None and not closed:
        raise Failed(
            f"this log is closed, and holds nothing new: the channel was moved to {export.moved_to}. "
            "Export from there; if the new log is lost, give --closed"
        )
    data = encode(export)
    try:
        write(file, data, replace=replace)
    except OSError as error:
        raise Failed(f"cannot write {file}: {error.strerror}") from None
    cluster_identity = export.cluster_identity
    offsets = [state.next_offset for state in export.states]
    text = (
        f"{file}: cluster {cluster_identity.cluster}, generation {cluster_identity.generation}, "
        f"{export.bundles} bundles, {len(data):,} bytes, only you may read it\n"
        f"covers each partition up to: {' '.join(map(str, offsets))}"
    )
    facts = {"cluster": cluster_identity.cluster, "generation": cluster_identity.generation, "bundles": export.bundles}
    done(remote, text, file=str(file), **facts, next_offsets=offsets, size_bytes=len(data))


async def exported(settings: Settings) -> Export:
    """The channel as its log has it; writes nothing. Raises the errors of the log."""
    from loadmanager.channel.migration.export import documents_in, export_of
    from loadmanager.channel.migration.offline_log import FoldedLog

    async with opened_log(settings) as log:
        folded = FoldedLog(log, log_of(settings))
        await folded.open()
        return export_of(folded.table, await documents_in(log), log_of(settings), now_ms())


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--empty", is_flag=True, help="There is no backup: begin an empty log of this --generation.")
@click.option(
    "--generation", metavar="N", type=click.IntRange(1), help="Generation of the new log.  [default: the next one]"
)
@click.option(
    "--from-coordination",
    metavar="ADDRESS",
    help="Coordination of the lost log; the command checks that no broker is registered there.",
)
@wait_option
@settings_options
@rewrites
def import_command(
    remote: Remote,
    file: Path | None,
    empty: bool,
    generation: int | None,
    from_coordination: str | None,
    wait_s: float,
    more: tuple[str, ...],
    **given: Any,
) -> None:
    """Fill a new, empty log from FILE. No broker of the cluster may run.

    The new log has a later generation, so its tokens are above all earlier ones. If a cluster ran on an earlier restore
    of this file, give a --generation above that one's, too. After an interruption run the same command again: no broker
    starts on the log before the import is complete.

    With --empty and without FILE the log gets no namespace and no policy: create them again.
    """
    if empty == (file is not None):
        raise click.UsageError("give the FILE of a backup, or --empty if there is none")
    settings = settings_of(given, more)
    if from_coordination is not None:
        check_there(from_coordination, "--from-coordination")
    data = _nothing(settings, generation) if file is None else _read(file)
    if from_coordination is None:
        say("not checked: whether a broker of the lost log still runs; --from-coordination ADDRESS checks it")
    confirm(remote, f"This fills {log_of(settings)} from {file or 'nothing'}")
    if remote.dry_run:
        _show_fitting(remote, data, settings, generation)
        return
    terms = terms_of(settings, settings, wait_s)
    moved = working(_imported(data, settings, terms, generation, from_coordination))
    show_moved(remote, moved)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise Failed(f"cannot read {file}: {error.strerror}") from None


def _nothing(settings: Settings, generation: int | None) -> bytes:
    """A backup with nothing in it but the generation before this one; the same whenever the command is run again."""
    from loadmanager.channel.migration.export import encode, nothing

    if generation is None:
        raise click.UsageError(
            "--empty needs a --generation above that of every token in your stores: their first four digits"
        )
    return encode(nothing(settings.cluster, generation))


def _show_fitting(remote: Remote, data: bytes, settings: Settings, generation: int | None) -> None:
    from loadmanager.channel.migration.export import decode, seal_of
    from loadmanager.channel.migration.move import cause_of_import, check_fits

    async def checked() -> tuple[Export, int]:
        export = decode(data)
        chosen = check_fits(export, settings.cluster, generation)
        await check_new_log(settings, cause_of_import(seal_of(data)), chosen)
        return export, chosen

    export, chosen = working(checked())
    identity = export.cluster_identity
    facts = {"cluster": identity.cluster, "generation": chosen, "bundles": export.bundles}
    where = log_of(settings)
    text = f"nothing was changed; without --dry-run {export.bundles} bundles of {identity.cluster} would be in {where}"
    done(remote, text, dry_run=True, log=where, **facts)


async def check_new_log(settings: Settings, cause: str, generation: int) -> None:
    """Raises Conflict where an import of this cause into a SQLite file would be refused.

    Creates nothing: a file that is not there is fit. Kafka is not looked at, since that would create the topics.
    """
    from loadmanager.broker.wiring import file_of
    from loadmanager.channel.migration.move import check_target

    if not settings.log.startswith("sqlite:") or not file_of(settings.log).exists():
        return
    async with opened_log(settings) as log:
        await check_target(log, log_of(settings), cause, settings.cluster, generation)


async def _imported(data: bytes, settings: Settings, terms: Terms, generation: int | None, old: str | None) -> Moved:
    from loadmanager.channel.migration.export import decode, seal_of
    from loadmanager.channel.migration.move import check_fits, restore

    export = decode(data)
    check_fits(export, settings.cluster, generation)  # before a file or a topic is created
    async with AsyncExitStack() as stack:
        new = await stack.enter_async_context(opened(settings))
        leaving = None
        if old is not None:
            earlier = settings.model_copy(update={"coordination": old})
            leaving = (await stack.enter_async_context(opened_coordination(earlier)), old)
        seal = seal_of(data)
        return await restore(export, seal, new, terms, generation=generation, old=leaving, say=say)


def terms_of(new: Settings, old: Settings, wait_s: float) -> Terms:
    """What the settings say of a move; how long a proof counts is what those said who may still have one. The new log
    names what the old one did, but for what was given for the new one."""
    from loadmanager.channel.migration.move import Terms

    return Terms(new.cluster, new.partitions, old.proof_validity_s, old.margin_s, now_ms(), wait_s, agreement_with(new))


def show_moved(remote: Remote, moved: Moved) -> None:
    """What a new log holds now."""
    pairs: list[tuple[str, object]] = [
        ("cluster", moved.cluster),
        ("generation", moved.generation),
        ("identity", moved.identity),
        ("partitions", moved.partitions),
        ("namespaces", moved.namespaces),
        ("bundles", moved.bundles),
        *((f"owned by {name}", count) for name, count in moved.owners.items()),
    ]
    show_pairs(remote, msgspec.to_builtins(moved), pairs)
    if moved.was_done:
        say("an earlier run did this already; nothing was changed")
    else:
        say("done: start the brokers, all of them together, under their old names")


def say(text: str) -> None:
    """What goes on, beside what is the answer."""
    echo(text, err=True)


def now_ms() -> int:
    """For people."""
    return int(time.time() * 1000)
