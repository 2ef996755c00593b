"""Bodies as Pulsar's tools expect them, for what they ask of brokers, clusters and topics; names are Pulsar's."""

from __future__ import annotations

from pydantic import BaseModel


class PartitionedTopic(BaseModel):
    """Pulsar's PartitionedTopicMetadata."""

    partitions: int
    deleted: bool = False


class TopicPositions(BaseModel):
    """Pulsar's TopicHashPositions: the position of each topic on the ring."""

    namespace: str
    bundle: str
    topicHashPositions: dict[str, int]  # noqa: N815


class OwnedBundle(BaseModel):
    """Pulsar's NamespaceOwnershipStatus; `broker_assignment`: shared, or by an isolation policy primary, secondary."""

    broker_assignment: str
    is_controlled: bool
    is_active: bool = True


class InternalConfiguration(BaseModel):
    """Pulsar's InternalConfigurationData: where the coordination service is. There are no ledgers."""

    zookeeperServers: str  # noqa: N815
    configurationStoreServers: str  # noqa: N815
    metadataStoreUrl: str  # noqa: N815
    configurationMetadataStoreUrl: str  # noqa: N815
    ledgersRootPath: str = ""  # noqa: N815


class ClusterData(BaseModel):
    """Pulsar's ClusterData: the addresses of the asked broker stand for those of the cluster."""

    serviceUrl: str  # noqa: N815
    brokerServiceUrl: str  # noqa: N815
    brokerClientTlsEnabled: bool  # noqa: N815


class ResourceQuota(BaseModel):
    """Pulsar's ResourceQuota. Nothing is limited by it: it is the mean load of this broker's bundles, as measured."""

    msgRateIn: float  # noqa: N815
    msgRateOut: float  # noqa: N815
    bandwidthIn: float  # noqa: N815
    bandwidthOut: float  # noqa: N815
    memory: float = 0.0
    dynamic: bool = True


class Monitored(BaseModel):
    """Pulsar's Metrics: the metrics that have the same labels. null: there is nothing to measure."""

    metrics: dict[str, float | None]
    dimensions: dict[str, str]
