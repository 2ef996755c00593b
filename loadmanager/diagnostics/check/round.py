"""One round of checks: settings, machine, and the stores' auditors. A store that hangs delays no other.

`wiring.py` chooses the auditors; this module runs them and interprets their failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import cast

from loadmanager.diagnostics.check.agreement import check_settings
from loadmanager.diagnostics.check.machine import check_clocks, check_versions, read_clocks, read_versions
from loadmanager.settings import Settings
from statechannel.audit import Finding, Severity
from statechannel.errors import StateChannelError

Auditor = Callable[[], AsyncIterator[Finding]]
"""Checks one store; its findings count, even if it hangs or fails later."""

AUDIT_TIMEOUT_S = 20.0


async def check(
    settings: Settings, auditors: Mapping[str, Auditor], timeout_s: float = AUDIT_TIMEOUT_S
) -> list[Finding]:
    """All findings, in the order: settings, machine, stores. Raises no error of a store."""
    found = [*check_settings(settings), *check_clocks(read_clocks()), *check_versions(read_versions(), settings)]
    rounds = await asyncio.gather(*(_audited(name, audit, timeout_s) for name, audit in auditors.items()))
    return [*found, *(finding for findings in rounds for finding in findings)]


async def _audited(name: str, audit: Auditor, timeout_s: float) -> list[Finding]:
    found: list[Finding] = []
    try:
        async with asyncio.timeout(timeout_s), aclosing(_closable(audit())) as findings:
            async for finding in findings:
                found.append(finding)  # noqa: PERF401 - a comprehension would lose them where it fails
    except TimeoutError:
        advice = "check that it runs and is reachable from here, then run the check again"
        found.append(Finding(name, Severity.ERROR, f"no answer within {timeout_s:g} s", advice))
    except (StateChannelError, OSError, ValueError) as error:
        advice = "correct that, then run the check again: it could look at nothing more"
        found.append(Finding(name, Severity.ERROR, " ".join(str(error).split()), advice))
    return found


async def _closable(findings: AsyncIterator[Finding]) -> AsyncGenerator[Finding]:
    """Closes the auditor's generator, however it is left."""
    try:
        async for finding in findings:
            yield finding
    finally:
        if isinstance(findings, AsyncGenerator):
            await cast("AsyncGenerator[Finding]", findings).aclose()


def worst(findings: Sequence[Finding]) -> Severity:
    """The highest severity."""
    order = list(Severity)
    return max((finding.severity for finding in findings), key=order.index, default=Severity.OK)
