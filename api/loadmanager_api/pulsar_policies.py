"""The fields of Pulsar's namespace policies (org.apache.pulsar.common.policies.data.Policies), except `bundles`.

Pulsar's tools may send any of them with a new namespace; they are accepted and ignored.
"""

from __future__ import annotations

PULSAR_POLICIES = frozenset(
    {
        "allowed_clusters",
        "auth_policies",
        "autoSubscriptionCreationOverride",
        "autoTopicCreationOverride",
        "backlog_quota_map",
        "clusterDispatchRate",
        "clusterThatCanDeleteNamespace",
        "clusterSubscribeRate",
        "compaction_threshold",
        "deduplicationEnabled",
        "deduplicationSnapshotIntervalSeconds",
        "delayed_delivery_policies",
        "deleted",
        "dispatcherPauseOnAckStatePersistentEnabled",
        "encryption_required",
        "entryFilters",
        "inactive_topic_policies",
        "is_allow_auto_update_schema",
        "latency_stats_sample_rate",
        "max_consumers_per_subscription",
        "max_consumers_per_topic",
        "max_producers_per_topic",
        "max_subscriptions_per_topic",
        "max_topics_per_namespace",
        "max_unacked_messages_per_consumer",
        "max_unacked_messages_per_subscription",
        "message_ttl_in_seconds",
        "migrated",
        "offload_deletion_lag_ms",
        "offload_policies",
        "offload_threshold",
        "offload_threshold_in_seconds",
        "persistence",
        "properties",
        "publishMaxMessageRate",
        "replication_clusters",
        "replicatorDispatchRate",
        "resource_group_name",
        "retention_policies",
        "schema_auto_update_compatibility_strategy",
        "schema_compatibility_strategy",
        "schema_validation_enforced",
        "subscriptionDispatchRate",
        "subscription_auth_mode",
        "subscription_expiration_time_minutes",
        "subscription_types_enabled",
        "topicDispatchRate",
    }
)
