"""The topics of a cluster; a test compares them with those that brokers open."""

from __future__ import annotations

from loadmanager.cluster.audit_log import AUDIT
from loadmanager.cluster.operation_log import OPERATIONS
from loadmanager.cluster.readers import TOPIC as READERS_TOPIC
from loadmanager.cluster.told_topics import TOPICS
from loadmanager.cluster.views import SUSPICIONS_TOPIC
from loadmanager.decisions.log import DECISIONS
from loadmanager.documents.fold import PLANS_TOPIC, POLICIES_TOPIC, SETTINGS_TOPIC
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC
from loadmanager.settings import Settings
from statechannel.ports import TopicSpec

CHANNEL_TOPIC = "bundle-state"
SNAPSHOTS_TOPIC = "bundle-state-snapshots"
VIEW_TOPICS = (BROKERS_TOPIC, BUNDLES_TOPIC, SUSPICIONS_TOPIC, READERS_TOPIC)


FOLLOWED_TOPICS = (BROKERS_TOPIC, BUNDLES_TOPIC)
"""Views that the load history reads entry by entry."""


def topics_of(settings: Settings) -> list[TopicSpec]:
    """The channel and its snapshots, and the compacted topics behind the table views."""
    views = [TopicSpec(topic, 1, compacted=True, followed=topic in FOLLOWED_TOPICS) for topic in VIEW_TOPICS]
    return [
        TopicSpec(CHANNEL_TOPIC, settings.partitions),
        TopicSpec(SNAPSHOTS_TOPIC, settings.partitions, compacted=True),
        DECISIONS,
        AUDIT,
        OPERATIONS,
        TOPICS,
        TopicSpec(SETTINGS_TOPIC, 1),
        TopicSpec(POLICIES_TOPIC, 1),
        TopicSpec(PLANS_TOPIC, 1),
        *views,
    ]
