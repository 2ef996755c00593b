"""`loadmanager channel agree`: replaces the agreement of all brokers of a log."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click
import msgspec

from loadmanager_api.cli.configuring import agreement_with, settings_of, settings_options
from loadmanager_api.cli.moving import say
from loadmanager_api.cli.options import confirm, rewrites
from loadmanager_api.cli.printing import show_pairs
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.stores import check_there, log_of, opened, opened_coordination, opened_log, working

if TYPE_CHECKING:
    from loadmanager.channel.migration.agreement import Replaced
    from loadmanager.settings import Settings
    from statechannel.law.agreement import Agreement


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
        leaving = None
        if old is not None:
            earlier = settings.model_copy(update={"coordination": old})
            leaving = (await stack.enter_async_context(opened_coordination(earlier)), old)
        return await replace_agreement(
            place, settings.cluster, agreement_with(settings), old=leaving, lost=lost, say=say
        )
