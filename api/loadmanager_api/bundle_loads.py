"""Loads of bundles, as their owners last reported them; an owner reports its hottest bundles (`load_top_bundles`).

A broker that does not lead reads the reports when it is asked: first await `views.bundles.read`, or `read_bundles`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loadmanager.broker.node import Node
from loadmanager.model.host import BundleLoad
from statechannel.law.bundle import Bundle
from statechannel.law.verdict import Ownership

AWAITED_S = 1.0
"""How long an answer that also tells loads waits for them. While the log does not answer, it comes without."""


class Loads:
    """For one answer: each owner's report is looked at once, however many of its bundles are in the answer."""

    def __init__(self, node: Node) -> None:
        self._reports = node.views.bundles
        self._known: dict[str, Mapping[Bundle, BundleLoad]] = {}

    def of(self, entry: Ownership) -> BundleLoad | None:
        """None unless its present owner reported the bundle."""
        if entry.holder is None:
            return None
        name = entry.holder.name
        if name not in self._known:
            report = self._reports.get(name)
            mine = report.bundles if report is not None and report.broker == entry.holder else ()
            self._known[name] = {loaded.bundle: loaded.load for loaded in mine}
        return self._known[name].get(entry.bundle)


def hottest(node: Node, fits: Callable[[Ownership], bool], most: int) -> list[Ownership]:
    """The bundles that fit and whose load is reported: those with the highest rate of messages first, then of bytes."""
    found: list[tuple[float, float, Ownership]] = []
    for report in node.views.bundles.values():
        for loaded in report.bundles:
            entry = node.channel.table.get(loaded.bundle)
            if entry is not None and entry.holder == report.broker and fits(entry):
                found.append((-loaded.load.rate_msg_s, -loaded.load.throughput_bytes_s, entry))
    found.sort(key=lambda each: (each[0], each[1], each[2].bundle))
    return [entry for _, _, entry in found[:most]]
