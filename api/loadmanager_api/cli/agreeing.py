"""`loadmanager channel agree`: replaces the agreement of all brokers of a log."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click
import msgspec

from loadmanager_api.cli.configuring import agreement_with, settings_of, settings_options
from loadmanager_api.cli.moving import say
from loadmanager_api.cli.options import Remote
from loadmanager_api.cli.printing import show_pairs
from loadmanager_api.cli.stores import check_there, opened, opened_coordination, working

if TYPE_CHECKING:
    from loadmanager.channel.migration.amending import Replaced
    from loadmanager.settings import Settings


@click.command()
@click.option("--from-coordination", metavar="ADDRESS", help="Address of the coordination that the brokers leave.")
@click.option(
    "--lost", is_flag=True, help="The old coordination is lost: its data was deleted, no broker can reach it."
)
@settings_options
@click.option("-o", "--output", type=click.Choice(["table", "json"]), help="Print a table, or JSON.  [default: table]")
@click.pass_context
def agree(
    ctx: click.Context,
    from_coordination: str | None,
    lost: bool,
    output: str | None,
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
    replaced = working(_replaced(settings, from_coordination, lost=lost))
    remote = (ctx.find_object(Remote) or Remote()).with_options(None, output)
    now = replaced.now
    pairs: list[tuple[str, object]] = [
        ("coordination root", now.root),
        ("proof_validity_s", f"{now.proof_validity_s:g}"),
        ("clock_drift", f"{now.clock_drift:g}"),
        ("margin_s", f"{now.margin_s:g}"),
        ("partitions", now.partitions),
    ]
    show_pairs(remote, msgspec.to_builtins(replaced), pairs)
    say("the log had this agreement already; nothing was changed" if replaced.was_done else "done: brokers may serve")


async def _replaced(settings: Settings, old: str | None, *, lost: bool) -> Replaced:
    from loadmanager.channel.migration.amending import replace_agreement

    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(opened(settings))
        leaving = None
        if old is not None:
            earlier = settings.model_copy(update={"coordination": old})
            leaving = (await stack.enter_async_context(opened_coordination(earlier)), old)
        return await replace_agreement(
            place, settings.cluster, agreement_with(settings), old=leaving, lost=lost, say=say
        )
