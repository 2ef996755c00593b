"""`loadmanager channel verify`: folds the log by itself, and compares with every snapshot and every live broker."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from loadmanager_api.cli.client import EXIT_REFUSED, EXIT_UNAVAILABLE
from loadmanager_api.cli.configuring import settings_of, settings_options
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.options import prints
from loadmanager_api.cli.printing import show
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.stores import check_there, coordination_of, opened_coordination, opened_log, working

if TYPE_CHECKING:
    from loadmanager.channel.audit.verification import Finding
    from loadmanager.settings import Settings


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
    from loadmanager.diagnostics.check.topics import CHANNEL_TOPIC

    async with opened_log(settings) as log, opened_coordination(settings) as coordination:
        return await verify(log, CHANNEL_TOPIC, settings.cluster, coordination.members, _progress, settings.partitions)


def _progress(found: Sequence[Finding]) -> None:
    if sys.stderr.isatty():
        bad = sum(finding.outcome.value == "differs" for finding in found)
        echo(f"partition {found[0].partition}: {len(found)} compared, {bad} differ", err=True)


def _show(remote: Remote, findings: Sequence[Finding]) -> None:
    rows = [(f.partition, f.who, f.next_offset, _outcome(f), f.detail) for f in findings]
    show(remote, msgspec.to_builtins(findings), ("partition", "who", "up to", "outcome", "detail"), rows)
    if remote.for_people:
        counts = Counter(finding.outcome.value for finding in findings)
        echo(f"\n{counts['agrees']} agree, {counts['differs']} differ, {counts['unchecked']} could not be checked")


def _outcome(finding: Finding) -> str:
    return finding.outcome.value.upper() if finding.outcome.value == "differs" else finding.outcome.value
