"""Keeps how full each broker was in the last hour, by its load reports, for a heat map. No decision depends on it.

A report holds until the next one. Each broker keeps a history of its own, which begins with its start.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from math import isnan, nan

import msgspec

from loadmanager.model.load import BrokerLoadData, usage, weights_of
from loadmanager.model.policies.model import BrokerPolicy, Policies
from loadmanager.settings import Settings

SPAN_S = 30
SPANS = 120
BROKERS_AT_MOST = 10_000


class _Row(msgspec.Struct, frozen=True):
    """The highest usage in each span, NaN without a report; the last span has the number `newest`.

    `present` is the usage now, which the spans after it begin with.
    """

    newest: int
    spans: array[float]
    present: float

    def until(self, now: int) -> array[float]:
        """The spans up to the number `now`."""
        passed = min(max(0, now - self.newest), SPANS)
        return self.spans[passed:] + array("f", [self.present] * passed)


Copy = tuple[int, Mapping[str, _Row]]


class UsageRows(msgspec.Struct, frozen=True):
    """By broker: its highest usage (1.0: full) in each span of `span_s`, oldest first; `end_ms` ends the last one.

    null where there was no report.
    """

    span_s: int
    end_ms: int
    brokers: Mapping[str, list[float | None]]


class UsageHistory:
    """Takes the changes of the view of load reports, on one loop."""

    def __init__(
        self, settings: Callable[[], Settings], policies: Callable[[], Policies], wall_ms: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._policies = policies
        self._wall_ms = wall_ms
        self._rows: dict[str, _Row] = {}

    def take(self, broker: str, _: BrokerLoadData | None, load: BrokerLoadData | None) -> None:
        """A report came, or (None) the last one expired."""
        now, before = self._now(), self._rows.get(broker)
        if before is None:
            if len(self._rows) >= BROKERS_AT_MOST:
                self._rows = {name: row for name, row in self._rows.items() if now - row.newest < SPANS}
            before = _Row(now, array("f", [nan] * SPANS), nan)
        capacity = self._policies().brokers.get(broker, BrokerPolicy()).capacity
        said = nan if load is None else usage(load, weights_of(self._settings()), capacity)
        spans = before.until(now)
        spans[-1] = said if isnan(spans[-1]) else max(spans[-1], said)
        self._rows[broker] = _Row(max(now, before.newest), spans, said)

    def copy(self) -> Copy:
        """The present content, for `rows`; it does not change any more."""
        return self._now(), dict(self._rows)

    def _now(self) -> int:
        return self._wall_ms() // (1000 * SPAN_S)


def rows(copy: Copy) -> UsageRows:
    """The brokers that reported in the last hour, by name. 1,000 take milliseconds: run it off the control loop."""
    now, found = copy
    shown = {name: [None if isnan(u) else round(u, 4) for u in row.until(now)] for name, row in sorted(found.items())}
    some = {name: usages for name, usages in shown.items() if any(usage is not None for usage in usages)}
    return UsageRows(SPAN_S, (now + 1) * SPAN_S * 1000, some)
