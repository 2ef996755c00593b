"""Commands that work without a broker, on the log and the coordination service that settings name.

`loadmanager channel export` and `import`: the channel as a file, for backup and restore. `channel agree` replaces the
agreement of all brokers of a log. `channel verify` folds the log by itself, and compares with every snapshot and every
live broker. `loadmanager migrate`: a cluster that has stopped goes on upon another log.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from loadmanager_api.cli.client import EXIT_REFUSED, EXIT_UNAVAILABLE, Failed, NotNow, run
from loadmanager_api.cli.configuring import agreement_with, of_the_old_side, pairs, settings_of, settings_options
from loadmanager_api.cli.diagnosis import quiet_clients
from loadmanager_api.cli.options import confirm, prints, rewrites
from loadmanager_api.cli.printing import done, echo, show, show_pairs
from loadmanager_api.cli.remote import Remote

if TYPE_CHECKING:
    from loadmanager.channel.audit.verification import Finding
    from loadmanager.channel.migration.agreement import Replaced
    from loadmanager.channel.migration.export import Export
    from loadmanager.channel.migration.move import Moved, Place, Terms
    from loadmanager.settings import Settings
    from statechannel.law.agreement import Agreement
    from statechannel.ports import Coordination, Log

T = TypeVar("T")
S = TypeVar("S", bound="Log | Coordination")


def working(work: Coroutine[Any, Any, T]) -> T:
    """Run it, and turn errors into a message and an exit code. Raises Failed, NotNow."""
    from loadmanager.errors import LoadManagerError, Unavailable
    from statechannel.errors import CoordinationUnavailable, LogUnavailable, StateChannelError

    try:
        with quiet_clients():
            return run(work)
    except (Unavailable, LogUnavailable, CoordinationUnavailable) as error:
        raise NotNow(str(error)) from None
    except (LoadManagerError, StateChannelError, ValueError) as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(f"{error.filename}: {error.strerror}") from None


def check_there(address: str, option: str) -> None:
    """Raises Failed if this is a SQLite file that does not exist: reading must not create it."""
    from loadmanager.broker.wiring import file_of

    if address.startswith("sqlite:") and not (file := file_of(address)).is_file():
        raise Failed(
            f"{file} is not a file: correct {option}" if file.exists() else f"there is no file {file}: correct {option}"
        )


def opened_log(settings: Settings) -> AbstractAsyncContextManager[Log]:
    """The log, started. Raises LogUnavailable, ValueError."""
    from loadmanager.broker.wiring import open_log

    return _started(open_log(settings), settings)


def opened_coordination(settings: Settings) -> AbstractAsyncContextManager[Coordination]:
    """The coordination service, started. Raises CoordinationUnavailable, ValueError."""
    from loadmanager.broker.wiring import open_coordination

    return _started(open_coordination(settings), settings)


@asynccontextmanager
async def _started(service: S, settings: Settings) -> AsyncGenerator[S]:
    try:
        await service.start(settings.start_timeout_s)
        yield service
    finally:
        await service.close()


@asynccontextmanager
async def opened(settings: Settings) -> AsyncGenerator[Place]:
    """The log and the coordination service, started."""
    from loadmanager.channel.migration.move import Place

    async with opened_log(settings) as log, opened_coordination(settings) as coordination:
        yield Place(log, coordination, log_of(settings), coordination_of(settings))


def log_of(settings: Settings) -> str:
    """The log's address in the form of `--log`, including a topic prefix that is not the default."""
    usual = type(settings).model_fields["topic_prefix"].default
    if settings.log.startswith("kafka:") and settings.topic_prefix != usual:
        return f"{settings.log} --set topic_prefix={settings.topic_prefix}"
    return settings.log


def coordination_of(settings: Settings) -> str:
    """The address of the coordination service, also where it follows from the log's. Raises Failed."""
    from loadmanager.broker.wiring import coordination_address

    try:
        return coordination_address(settings)
    except ValueError as error:
        raise Failed(str(error)) from None


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
    from loadmanager.channel.migration import export as export_file

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
    data = export_file.encode(export)
    try:
        export_file.write(file, data, replace=replace)
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
    from loadmanager.channel.migration.export import documents_in, export_of, groups_in
    from loadmanager.channel.migration.offline_log import FoldedLog

    async with opened_log(settings) as log:
        folded = FoldedLog(log, log_of(settings))
        await folded.open()
        documents, groups = await documents_in(log), await groups_in(log, members=False)
        return export_of(folded.table, documents, log_of(settings), now_ms(), groups)


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
    from loadmanager.channel.migration import export as export_file

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
        _show_fitting(remote, export_file, data, settings, generation)
        return
    terms = terms_of(settings, settings, wait_s)
    moved = working(_imported(export_file, data, settings, terms, generation, from_coordination))
    show_moved(remote, moved)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise Failed(f"cannot read {file}: {error.strerror}") from None


def _nothing(settings: Settings, generation: int | None) -> bytes:
    """A backup with nothing in it but the generation before this one; the same whenever the command is run again."""
    from loadmanager.channel.migration import export as export_file
    from loadmanager.channel.migration.export import nothing

    if generation is None:
        raise click.UsageError(
            "--empty needs a --generation above that of every token in your stores: their first four digits"
        )
    return export_file.encode(nothing(settings.cluster, generation))


def _show_fitting(remote: Remote, export_file: Any, data: bytes, settings: Settings, generation: int | None) -> None:
    from loadmanager.channel.migration.move import cause_of_import, check_fits

    async def checked() -> tuple[Export, int]:
        export: Export = export_file.decode(data)
        chosen = check_fits(export, settings.cluster, generation)
        await check_new_log(settings, cause_of_import(export_file.seal_of(data)), chosen)
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


async def _imported(
    export_file: Any, data: bytes, settings: Settings, terms: Terms, generation: int | None, old: str | None
) -> Moved:
    from loadmanager.channel.migration.move import check_fits, restore

    export = export_file.decode(data)
    check_fits(export, settings.cluster, generation)  # before a file or a topic is created
    async with AsyncExitStack() as stack:
        new = await stack.enter_async_context(opened(settings))
        leaving = await _leaving(stack, settings, old)
        seal = export_file.seal_of(data)
        return await restore(export, seal, new, terms, generation=generation, old=leaving, say=say)


async def _leaving(stack: AsyncExitStack, settings: Settings, old: str | None) -> tuple[Coordination, str] | None:
    """The coordination that brokers leave, started, with its address; None if none was named."""
    if old is None:
        return None
    earlier = settings.model_copy(update={"coordination": old})
    return await stack.enter_async_context(opened_coordination(earlier)), old


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


@click.command()
@click.option("--from-coordination", metavar="ADDRESS", help="Address of the coordination that the brokers leave.")
@click.option(
    "--lost", is_flag=True, help="The old coordination is lost: its data was deleted, no broker can reach it."
)
@settings_options
@rewrites
def agree(
    remote: Remote,
    from_coordination: str | None,
    lost: bool,
    more: tuple[str, ...],
    **given: Any,
) -> None:
    """Replace what all brokers of a log agree on: the coordination root, proof_validity_s, clock_drift.

    Give the new settings of the brokers. The log keeps each value that is not given. Running brokers stop serving for
    about the old proof_validity_s. Then a broker whose settings fit serves again; the others end with a message. After
    an interruption run the same command again: until then no broker serves.
    """
    if from_coordination is not None and lost:
        raise click.UsageError("give either --from-coordination or --lost")
    settings = settings_of(given, more)
    check_there(settings.log, "--log")
    if from_coordination is not None:
        check_there(from_coordination, "--from-coordination")
    confirm(remote, f"This replaces what all brokers of {log_of(settings)} agree on: they stop serving for a while")
    if remote.dry_run:
        _show_wanted(remote, settings)
        return
    replaced = working(_replaced(settings, from_coordination, lost=lost))
    show_pairs(remote, msgspec.to_builtins(replaced), _pairs(replaced.now))
    say("the log had this agreement already; nothing was changed" if replaced.was_done else "done: brokers may serve")


def _show_wanted(remote: Remote, settings: Settings) -> None:
    """What would be agreed on. The root is the log's: which one the new address belongs to is read with the change."""
    word = working(_present(settings))
    now = agreement_with(settings)(word, word.root)
    show_pairs(
        remote, {"dry_run": True, "before": msgspec.to_builtins(word), "now": msgspec.to_builtins(now)}, _pairs(now)
    )
    say("nothing was changed; without --dry-run the brokers would agree on this, and on the root of --coordination")


async def _present(settings: Settings) -> Agreement:
    from loadmanager.channel.migration.agreement import present_agreement

    async with opened_log(settings) as log:
        return await present_agreement(log, log_of(settings), settings.cluster)


def _pairs(now: Agreement) -> list[tuple[str, object]]:
    return [
        ("coordination root", now.root),
        ("proof_validity_s", f"{now.proof_validity_s:g}"),
        ("clock_drift", f"{now.clock_drift:g}"),
        ("margin_s", f"{now.margin_s:g}"),
        ("partitions", now.partitions),
    ]


async def _replaced(settings: Settings, old: str | None, *, lost: bool) -> Replaced:
    from loadmanager.channel.migration.agreement import replace_agreement

    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(opened(settings))
        leaving = await _leaving(stack, settings, old)
        return await replace_agreement(
            place, settings.cluster, agreement_with(settings), old=leaving, lost=lost, say=say
        )


@click.command()
@settings_options
@prints
def verify(remote: Remote, more: tuple[str, ...], **given: Any) -> None:
    """Read the log from its begin, and check that the snapshots and all live brokers agree with it.

    Give the options of the brokers. The command writes nothing. Brokers may run meanwhile: each is compared at exactly
    the offset that it reports. Exit code 1: something differs; the first namespace and bundle that differ are named.
    Exit code 3: nothing differs, but not every broker could be asked.
    """
    settings = settings_of(given, more)
    check_there(settings.log, "--log")
    check_there(coordination_of(settings), "--coordination")
    findings = working(_verified(settings))
    _show(remote, findings)
    outcomes = {finding.outcome.value for finding in findings}
    if "differs" in outcomes:
        raise SystemExit(EXIT_REFUSED)
    if "unchecked" in outcomes:
        raise SystemExit(EXIT_UNAVAILABLE)


async def _verified(settings: Settings) -> list[Finding]:
    from loadmanager.channel.audit.verification import verify
    from loadmanager.diagnostics.topics import CHANNEL_TOPIC

    async with opened_log(settings) as log, opened_coordination(settings) as coordination:
        return await verify(log, CHANNEL_TOPIC, settings.cluster, coordination.members, _progress, settings.partitions)


def _progress(found: Sequence[Finding]) -> None:
    if sys.stderr.isatty():
        bad = sum(finding.outcome.value == "differs" for finding in found)
        echo(f"partition {found[0].partition}: {len(found)} compared, {bad} differ", err=True)


def _show(remote: Remote, findings: Sequence[Finding]) -> None:
    rows = [
        (f.partition, f.who, f.next_offset, "DIFFERS" if f.outcome.value == "differs" else f.outcome.value, f.detail)
        for f in findings
    ]
    show(remote, msgspec.to_builtins(findings), ("partition", "who", "up to", "outcome", "detail"), rows)
    if remote.for_people:
        counts = Counter(finding.outcome.value for finding in findings)
        echo(f"\n{counts['agrees']} agree, {counts['differs']} differ, {counts['unchecked']} could not be checked")


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
    from loadmanager.diagnostics.topics import topics_of

    await _check(new)
    async with opened(old) as source, opened(new) as target:
        return await migrate(source, target, terms_of(new, old, wait_s), topics_of(new), say=say)


async def _check(new: Settings) -> None:
    """What `loadmanager check` finds at the new stores. Raises Conflict."""
    from loadmanager.broker.wiring import auditors
    from loadmanager.diagnostics.check import check
    from loadmanager.errors import Conflict
    from statechannel.audit import Severity

    findings = await check(new, auditors(new))
    errors = [f"{f.subject}: {f.found} -> {f.advice}" for f in findings if f.severity is Severity.ERROR]
    if errors:
        raise Conflict("\n  ".join(("the new stores are not ready (see `loadmanager check`):", *errors)))
