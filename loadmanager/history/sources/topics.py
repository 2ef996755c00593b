"""The topics that the history is made of, whether or not they exist yet."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loadmanager.cluster.audit_log import AUDIT_TOPIC
from loadmanager.consumers.coordinator.lag_topic import GROUP_LAG_TOPIC
from loadmanager.decisions.log import DECISIONS_TOPIC
from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC


class Topic(msgspec.Struct, frozen=True):
    """A topic, and the tables that its records go to.

    A `compacted` topic keeps replaced records for a day (`min.compaction.lag.ms`); a later reader finds only the newest
    value of each key. Other topics keep everything until it is trimmed by age.
    """

    name: str
    tables: tuple[str, ...]
    compacted: bool = False


TOPICS: Mapping[str, Topic] = {
    topic.name: topic
    for topic in (
        Topic(BROKERS_TOPIC, ("broker_load",), compacted=True),
        Topic(BUNDLES_TOPIC, ("bundle_load", "bundle_total"), compacted=True),
        Topic(CHANNEL_TOPIC, ("channel", "transition")),
        Topic(DECISIONS_TOPIC, ("decision", "move")),
        Topic(AUDIT_TOPIC, ("audit",)),
        Topic(GROUP_LAG_TOPIC, ("group_lag",), compacted=True),
    )
}
"""By name. `group-lag` exists once a broker coordinates a group: it is left out, and joins when it exists."""
