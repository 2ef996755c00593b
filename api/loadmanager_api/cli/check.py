"""`loadmanager check`: checks whether a broker with these settings would run well. Changes nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from loadmanager_api.cli.client import EXIT_REFUSED, Failed, run
from loadmanager_api.cli.configuring import settings_of, settings_options
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.options import prints
from loadmanager_api.cli.printing import hanging, show_answer
from loadmanager_api.cli.remote import Remote

if TYPE_CHECKING:
    from statechannel.audit import Finding


@click.command()
@settings_options
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    help="Seconds to wait for each store.  [default: 20]",
)
@prints
def check(remote: Remote, timeout_s: float | None, more: tuple[str, ...], **given: Any) -> None:
    """Check Kafka and ZooKeeper, or the SQLite files, as a broker with these settings would find them.

    Give the options of the broker. The command creates and changes nothing. Exit code 1: there are errors.
    """
    from loadmanager.broker.wiring import auditors
    from loadmanager.diagnostics.check.round import AUDIT_TIMEOUT_S, check, worst
    from statechannel.audit import Severity

    settings = settings_of(given, more)
    try:
        looking = auditors(settings)
    except ValueError as error:
        raise Failed(str(error)) from None
    with quiet_clients():
        findings = run(check(settings, looking, timeout_s or AUDIT_TIMEOUT_S))
    _show(remote, findings)
    if worst(findings) is Severity.ERROR:
        raise SystemExit(EXIT_REFUSED)


@contextmanager
def quiet_clients() -> Generator[None]:
    """Silence the stores' clients: the findings say what they would log."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        root.setLevel(before)


def _show(remote: Remote, findings: Sequence[Finding]) -> None:
    if not remote.for_people:
        show_answer(remote, [{**asdict(finding), "severity": finding.severity.value} for finding in findings])
        return
    width = max((len(finding.subject) for finding in findings), default=0)
    margin = " " * (7 + 2 + width + 2)
    for finding in findings:
        echo(hanging(f"{finding.severity.value:<7}  {finding.subject:<{width}}  ", margin, finding.found))
        if finding.advice:
            echo(hanging(f"{margin}-> ", f"{margin}   ", finding.advice))
    counts = Counter(finding.severity.value for finding in findings)
    errors, warnings = (f"{n} {word}{'' if n == 1 else 's'}" for n, word in _counted(counts))
    echo(f"\n{errors}, {warnings}, {counts['ok']} ok")


def _counted(counts: Counter[str]) -> list[tuple[int, str]]:
    return [(counts[word], word) for word in ("error", "warning")]
