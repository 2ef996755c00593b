"""Every setting with its unit, default and bounds, section by section, and what must hold between them.

Sources are the environment (`LOADMANAGER_…`), the command line and code; for live settings also the cluster's own
values (`loadmanager.settings.overlay`). Pydantic checks input from outside; inside, settings are passed as this frozen
object, never read ambiently. `docs/settings.md` has a table for each section.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from pydantic import field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from loadmanager.errors import Invalid
from loadmanager.settings.constants import Constants
from loadmanager.settings.description import PULSAR, Description, described, fixed, live, unit_of
from loadmanager.settings.removed import REMOVED, why_removed
from statechannel.law.bundle import DOTS

MAX_PORT = 65_535
MOST = 1e15
"""The upper bound of every number: larger ones could overflow in 64-bit columns or in a database."""
MOST_S = 1e9
"""The upper bound of every duration: 30 years."""

TOMBSTONE_S = 3_600.0
"""Deletions stay readable in compacted topics: Pulsar's default. On Kafka it is `delete.retention.ms` of the topics."""
LEAST_SAMPLE_S, LEAST_REPORT_S = 0.05, 0.1
"""However short the window: more often costs more than it tells."""

MIB = 2.0**20

Tolerance = Literal["tight", "default", "loose"]
TOLERANCES: Mapping[str, float] = {"tight": 0.05, "default": 0.1, "loose": 0.25}
"""By how much a broker may be fuller than the mean of those that could take its bundles."""

_EXTENSIONS = "org.apache.pulsar.broker.loadbalance.extensions"
_MODULAR = "org.apache.pulsar.broker.loadbalance.impl"
STRATEGY_CLASSES: Mapping[str, str] = {
    f"{_EXTENSIONS}.scheduler.TransferShedder": "transfer",
    f"{_MODULAR}.ThresholdShedder": "threshold",
    f"{_MODULAR}.UniformLoadShedder": "uniform",
    f"{_MODULAR}.OverloadShedder": "overload",
    f"{_MODULAR}.AvgShedder": "avg",
}
PLACEMENT_CLASSES: Mapping[str, str] = {
    f"{_EXTENSIONS}.strategy.LeastResourceUsageWithWeight": "least-resource-usage",
    f"{_MODULAR}.LeastResourceUsageWithWeight": "least-resource-usage",
}


# A broker's place, identity and stores: all fixed while it runs.
class Place(BaseSettings):
    """Cluster, addresses, identity."""

    cluster: str = fixed("standalone", "name of the cluster; its log keeps it", pattern=r"^[\w.-]+$")
    advertised: str = fixed("127.0.0.1:0", "host:port by which others know this broker; its name")
    log: str = fixed("sqlite:loadmanager.db", "sqlite:FILE or kafka://host:port[,host:port…]", "needs no server")
    coordination: str | None = fixed(None, "sqlite:FILE or zookeeper://host:port[,…][/root]; default: as log")
    partitions: int | None = fixed(
        None,
        "of the channel, at creation; default 4, Kafka 16",
        "more partitions than brokers spread the work",
        ge=1,
        le=1024,
    )
    topic_prefix: str = fixed(
        "loadmanager.", "prefix of every Kafka topic of this cluster", "several clusters can share a Kafka"
    )
    replication: int = fixed(3, "of Kafka topics at creation", "one lost machine loses nothing", ge=1)
    min_insync_replicas: int = fixed(2, "of Kafka topics at creation", "writes go on with one machine down", ge=1)
    development: bool = fixed(
        False,
        "accept a Kafka without replication, and a ZooKeeper that any client may change",
        "a lost disk must not lose the channel",
    )
    kafka: Mapping[str, str] = fixed(dict, "passed through to librdkafka (SASL, TLS)")
    zookeeper: Mapping[str, str] = fixed(dict, "passed through to kazoo (auth, TLS)")
    insecure: bool = fixed(
        False,
        "listen on addresses that other machines reach although any client may do anything or read all traffic, "
        "and use a ZooKeeper that any client may change",
        "without authentication and TLS a broker should serve one machine only",
    )
    history_dir: str | None = fixed(
        None,
        "folder in which the load history's jobs publish; served below /v1/history",
        "only machines that run the jobs have one",
    )
    start_timeout_s: float = fixed(
        60.0,
        "until log and coordination must have answered at start",
        "servers that start at the same time get a minute",
        gt=0,
    )

    failure_domain: str = fixed("", "rack or zone")
    capacity: Mapping[str, float] = fixed(dict, "declared: cpu (cores), memory_bytes, …", "if not declared, measured")


class Observing(BaseSettings):
    """Logs and traces."""

    log_format: Literal["console", "json"] = fixed(
        "console",
        "of the log on standard error",
        "console is for people; json has one object per line, for log collectors",
    )
    otlp_endpoint: str = fixed(
        "",
        "URL of a collector that takes traces by OTLP over HTTP, such as http://127.0.0.1:4318; empty: no traces",
        "needs the extra `otel`; credentials: OTEL_EXPORTER_OTLP_HEADERS",
        pattern=r"^(https?://\S+)?$",
    )


# Who reaches the admin port, and how a client shows who it is: all fixed while the broker runs. The files themselves
# are read again when they change, so a renewed certificate or key needs no restart.
class Access(BaseSettings):
    """TLS, tokens, superusers."""

    tls_certificate: str = fixed("", "PEM file with the certificate of the admin port, and its chain", "plain HTTP")
    tls_key: str = fixed("", "PEM file with the private key of `tls_certificate`")
    tls_client_ca: str = fixed(
        "", "PEM file with the authorities whose client certificates are accepted", "no certificates, tokens only"
    )
    tls_client_required: bool = fixed(
        False,
        "refuse connections without a client certificate",
        "a token is enough",
        pulsar="tlsRequireTrustedClientCert",
    )
    token_keys: str = fixed(
        "",
        "file with the public keys of tokens (PEM, or a JWKS), or the https URL of a JWKS; "
        "empty with an https `token_issuer`: that issuer's OpenID Connect discovery",
        "no tokens",
    )
    token_issuer: str = fixed("", "required `iss` of a token", "empty: any issuer whose key is accepted")
    token_audience: str = fixed("loadmanager", "required `aud` of a token", "tokens for other services are refused")
    token_subject_claim: str = fixed(
        "sub",
        "the claim that names the principal",
        "the one that all issuers set",
        pulsar="tokenAuthClaim",
        min_length=1,
    )
    superusers: str = fixed(
        "",
        "principals, separated by commas, that may do everything",
        "the first access policy needs an author",
        pulsar="superUserRoles",
    )

    @property
    def takes_tokens(self) -> bool:
        """Whether clients can authenticate with a token."""
        return bool(self.token_keys or self.token_issuer)

    @property
    def authentication(self) -> bool:
        """Whether clients must say who they are."""
        return self.takes_tokens or bool(self.tls_client_ca)

    @property
    def superuser_names(self) -> frozenset[str]:
        """The principals among `superusers`."""
        return frozenset(each.strip() for each in self.superusers.split(",") if each.strip())

    @property
    def admin_scheme(self) -> str:
        """The scheme of the admin URL."""
        return "https" if self.tls_certificate else "http"


# How much of a broker its clients may use: fixed, each broker has its own.
class HttpLimits(BaseSettings):
    """Limits and names of the admin port."""

    http_hosts: str = fixed(
        "",
        "further names, separated by commas, by which clients may call this broker (an ingress, an alias)",
        "its advertised name, localhost and addresses are allowed; others are refused against DNS rebinding",
    )
    http_probe_port: int = fixed(
        0,
        "port that answers health, liveness and readiness alone, without TLS; 0: none",
        "for probes without a certificate when tls_client_required is on",
        ge=0,
        le=65_535,
    )
    http_requests: int = fixed(
        512, "most requests at the same time, lookups excluded", "the next one is asked to retry", ge=8
    )
    http_request_rate: float | None = fixed(
        None,
        "most other requests per second from one client; none: no limit",
        "a client is a principal, or an address if brokers do not authenticate",
        pulsar="httpRequestsMaxPerSecond",
        gt=0,
    )
    http_body_limit_bytes: int = fixed(
        1_048_576, "of a request's body", "65,536 boundaries, or 1,000 topics of 1,000 characters", ge=65_536, le=2**26
    )


# Mostly fixed: safety depends on them, and brokers must not change them one by one while they rely on each other's
# values.
class Running(BaseSettings):
    """Proofs, failover, time-outs, retention."""

    # --- proofs and failures
    proof_validity_s: float = fixed(
        1.25, "V: how long a proof of ownership counts", "a crash costs this and the margin", gt=0.2, le=60
    )
    session_timeout_s: float = fixed(
        6.0,
        "coordination session; lost if the control loop hangs this long",
        "several proofs",
        pulsar={"metadataStoreSessionTimeoutMillis": 0.001},
        ge=1,
        le=60,
    )
    in_flight_timeout_s: float = fixed(
        30.0,
        "until a bundle in flight is cancelled or revoked",
        PULSAR,
        pulsar={"loadBalancerInFlightServiceUnitStateWaitingTimeInMillis": 0.001},
        gt=0,
    )

    # --- snapshots and retention
    snapshot_records: int = fixed(
        20_000,
        "most channel records that a starting broker replays, over all partitions",
        "0.3 s of replay; a record of many bundles counts as several",
        ge=1,
    )
    snapshot_interval_s: float = fixed(
        3_600.0, "until the next snapshot if there was any entry", "a quiet channel has a recent snapshot too", gt=0
    )
    log_retention_s: float = fixed(604_800.0, "younger records stay in the channel's log", "a week", ge=0)

    # --- lookups
    lookup_timeout_s: float = live(10.0, "until a deferred lookup answers 503", "above any failover", gt=0)

    # --- the service
    host_acquire_timeout_s: float = live(
        10.0, "until `acquire` counts as failed", "a third of in_flight_timeout_s", gt=0
    )
    drain_timeout_s: float = live(
        60.0,
        "until a stopping broker leaves, even with bundles",
        PULSAR,
        pulsar={"brokerShutdownTimeoutMs": 0.001},
        gt=0,
    )

    # --- records
    group_retention_s: float = fixed(
        604_800.0, "a consumer group without members is forgotten", "a week, as Kafka keeps its offsets", ge=60
    )
    audit_retention_s: float = live(7_776_000.0, "entries of the audit log are kept: who changed what", "90 days", gt=0)


class Load(BaseSettings):
    """Load reports."""

    load_report_max_interval_s: float = live(
        900.0, "report at least this often", PULSAR, pulsar={"loadBalancerReportUpdateMaxIntervalMinutes": 60.0}, gt=0
    )
    load_window_s: float = live(30.0, "loads are means over this time", "short peaks must not cause moves", gt=0)


class Balancing(BaseSettings):
    """Rebalancing and placement."""

    balancing: bool = live(
        True,
        "master switch: automatic moves, splits and merges",
        "loads stay even without an operator",
        pulsar={"loadBalancerEnabled": 1.0, "loadBalancerSheddingEnabled": 1.0},
    )
    balancing_strategy: str = live(
        "plan",
        "name of the strategy that decides moves",
        "it weighs what a move gains against what it costs",
        pulsar="loadBalancerLoadSheddingStrategy",
        words=STRATEGY_CLASSES,
    )
    balancing_interval_s: float = live(
        60.0, "between two rounds", PULSAR, pulsar={"loadBalancerSheddingIntervalMinutes": 60.0}, ge=0.01
    )
    balancing_tolerance: Tolerance | float = live(
        "default",
        "by how much a broker may be fuller than the mean: tight, default, loose, or a fraction",
        "default is 0.1: smaller differences are usually noise",
    )
    balancing_budget: float = live(
        0.2,
        "part of the cluster's load moved in one round; a first move, or a group that helps together, may exceed it",
        "limits the harm of a wrong decision",
        gt=0,
        le=1,
    )
    balancing_moves_per_round: int = live(100, "most moves decided in one round", "limits reconnects per minute", ge=1)
    balancing_review: bool = live(
        False,
        "moves wait for approval (those of drains and policies too)",
        "otherwise nothing would move without an operator",
    )
    bundle_rest_s: float = live(
        1800.0,
        "a moved bundle is not moved again within",
        PULSAR,
        pulsar={"loadBalancerSheddingGracePeriodMinutes": 60.0},
        ge=0,
    )
    overloaded_percent: float = live(
        85.0,
        "usage from which a broker is overloaded",
        PULSAR,
        pulsar="loadBalancerBrokerOverloadedThresholdPercentage",
        gt=0,
        le=100,
    )
    weight_cpu: float = live(1.0, "weight of CPU", PULSAR, pulsar="loadBalancerCPUResourceWeight", ge=0, le=10)
    weight_bandwidth: float = live(
        1.0,
        "weight of bandwidth, where a capacity is declared",
        PULSAR,
        pulsar={"loadBalancerBandwidthInResourceWeight": 1.0, "loadBalancerBandwidthOutResourceWeight": 1.0},
        ge=0,
        le=10,
    )
    weight_message_rate: float = live(
        1.0, "weight of messages, where a capacity is declared", "has no effect until one is declared", ge=0, le=10
    )
    prefer_later_versions: bool = live(
        False, "bundles go to brokers of the newest release only", PULSAR, pulsar="preferLaterVersions"
    )
    placement: str = live(
        "least-loaded",
        "name of the placement strategy",
        "counts bundles assigned since the last report",
        pulsar="loadBalancerLoadPlacementStrategy",
        words=PLACEMENT_CLASSES,
    )


# `plan` reads none of these.
class Shedding(BaseSettings):
    """Pulsar's shedders: `transfer`, `threshold`, `uniform`, `avg`."""

    shedder_hit_count: int = live(
        3,
        "transfer: rounds in a row to pass before a decision",
        PULSAR,
        pulsar="loadBalancerSheddingConditionHitCountThreshold",
        ge=0,
    )
    shedder_delay_s: float = live(
        180.0,
        "transfer: a broker that shed must first report after this time",
        PULSAR,
        pulsar={"loadBalanceSheddingDelayInSeconds": 1.0, "loadBalancerSheddingDelayInSeconds": 1.0},
        ge=0,
    )


class Reshaping(BaseSettings):
    """Automatic splits and merges."""

    split: bool = live(True, "hot bundles are split", PULSAR, pulsar="loadBalancerAutoBundleSplitEnabled")
    split_max_keys: int = live(
        1000,
        "topics or keys of a bundle; 0 = no limit",
        PULSAR,
        pulsar="loadBalancerNamespaceBundleMaxTopics",
        ge=0,
    )
    split_max_sessions: int = live(
        1000, "sessions of a bundle; 0 = no limit", PULSAR, pulsar="loadBalancerNamespaceBundleMaxSessions", ge=0
    )
    split_max_rate_msg_s: float = live(
        30_000.0,
        "messages in and out of a bundle; 0 = no limit",
        PULSAR,
        pulsar="loadBalancerNamespaceBundleMaxMsgRate",
        ge=0,
    )
    split_max_bandwidth_bytes_s: float = live(
        100 * MIB,
        "bytes in and out; 0 = no limit",
        PULSAR,
        pulsar={"loadBalancerNamespaceBundleMaxBandwidthMbytes": MIB},
        ge=0,
    )
    split_algorithm: str = live(
        "range_equally_divide",
        "how automatic splits find the boundaries",
        PULSAR,
        pulsar="defaultNamespaceBundleSplitAlgorithm",
    )
    namespace_max_bundles: int = live(
        128, "a namespace is not split beyond", PULSAR, pulsar="loadBalancerNamespaceMaximumBundles", ge=1
    )
    merge: bool = live(False, "cold neighbours of one owner are merged", "off: many bundles are usually intended")


class Advising(BaseSettings):
    """Advice of the load history."""

    advice_apply: bool = live(
        False, "advice is applied without approval, within its bounds", "otherwise advice waits for approval"
    )


class Settings(
    Constants,
    Advising,
    Reshaping,
    Shedding,
    Balancing,
    Load,
    Running,
    HttpLimits,
    Access,
    Observing,
    Place,
    BaseSettings,
):
    """How one broker runs. Durations end in `_s`, sizes in `_bytes`."""

    model_config = SettingsConfigDict(env_prefix="LOADMANAGER_", frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Code before the environment, which is only searched if it names a setting: a search takes milliseconds."""
        assert isinstance(env_settings, EnvSettingsSource)
        prefix, given = env_settings.env_prefix.lower(), env_settings.env_vars.keys()
        for name in REMOVED:
            if f"{prefix}{name}" in given:
                raise Invalid(f"{prefix.upper()}{name.upper()}: {why_removed(name)}")
        named = {f"{prefix}{name}" for name in descriptions()}
        return (init_settings,) if named.isdisjoint(given) else (init_settings, env_settings)

    @model_validator(mode="after")
    def _within_reason(self) -> Settings:
        for name, value in self:
            most = MOST_S if unit_of(name) == "s" else MOST
            if isinstance(value, int | float) and value > most:
                raise ValueError(f"{name} must not be above {most:g}")
        return self

    @field_validator("cluster")
    @classmethod
    def _no_path(cls, cluster: str) -> str:
        if cluster in DOTS:  # it is a part of paths, in ZooKeeper and on disks
            raise ValueError("a cluster's name must not be . or ..")
        return cluster

    @model_validator(mode="after")
    def _ordered(self) -> Settings:
        if self.load_report_max_interval_s < self.load_report_min_interval_s:
            least = f"a sixth of load_window_s ({self.load_report_min_interval_s:g})"
            raise ValueError(f"load_report_max_interval_s must not be below {least}")
        if self.session_timeout_s < self.proof_validity_s:
            raise ValueError(f"session_timeout_s must not be below proof_validity_s ({self.proof_validity_s:g})")
        if self.in_flight_timeout_s >= TOMBSTONE_S:
            raise ValueError(f"in_flight_timeout_s must be below {TOMBSTONE_S:g}, for which deletions stay readable")
        if not isinstance(self.balancing_tolerance, str) and not 0 < self.balancing_tolerance <= 1:
            raise ValueError("balancing_tolerance must be tight, default, loose, or a fraction above 0 and up to 1")
        return self

    @model_validator(mode="after")
    def _complete(self) -> Settings:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key belong together: give both or neither")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tls_client_ca needs tls_certificate: clients show certificates over TLS only")
        if self.tls_client_required and not self.tls_client_ca:
            raise ValueError("tls_client_required needs tls_client_ca, the authorities of the required certificates")
        for name, url in (("token_keys", self.token_keys), ("token_issuer", self.token_issuer)):
            if url.startswith("http://"):
                raise ValueError(f"{name} must be https: over http an attacker could replace the keys")
        if self.token_issuer and not self.token_keys and not self.token_issuer.startswith("https://"):
            raise ValueError("token_keys is missing: only an https token_issuer is asked for its keys")
        if self.takes_tokens and not self.token_audience:
            raise ValueError("token_audience must not be empty: a token for any other service would do here")
        if self.authentication and not self.superuser_names:
            raise ValueError("superusers is empty: name at least one, to write the first access policy")
        if "*" in self.superuser_names:
            raise ValueError("superusers must be names; to allow everyone (*), write an access policy")
        if self.superuser_names and not self.authentication:
            raise ValueError(
                "superusers needs token_keys, token_issuer or tls_client_ca: without one, no client can prove its name"
            )
        return self

    @property
    def host_prepare_timeout_s(self) -> float:
        """Until `prepare` counts as failed: as long as `acquire` may take, since it does part of its work ahead."""
        return self.host_acquire_timeout_s

    @property
    def host_release_timeout_s(self) -> float:
        """Until `release` is overtaken by `abandon`: half of what `acquire` may take, as a release loads nothing."""
        return self.host_acquire_timeout_s / 2

    @property
    def host_load_timeout_s(self) -> float:
        """Until `load` counts as failed and its last answer stays: as long as a release, and reports go on."""
        return self.host_acquire_timeout_s / 2

    @property
    def load_sample_interval_s(self) -> float:
        """Between two samples of the process and its bundles: 30 in a window make a mean."""
        return max(LEAST_SAMPLE_S, self.load_window_s / 30)

    @property
    def load_report_min_interval_s(self) -> float:
        """Between two reports at least: six in a window, as a mean changes little in less."""
        return max(LEAST_REPORT_S, self.load_window_s / 6)

    @property
    def load_ttl_s(self) -> float:
        """Older load data is ignored and tombstoned: one report may be late."""
        return 2 * self.load_report_max_interval_s

    @property
    def tolerance(self) -> float:
        """By how much a broker may be fuller than the mean, as a fraction of the mean."""
        chosen = self.balancing_tolerance
        return TOLERANCES[chosen] if isinstance(chosen, str) else chosen

    @property
    def margin_s(self) -> float:
        """How long the leader waits beyond V: at least 100 ms, and enough for clocks that drift apart."""
        return max(0.1, self.clock_drift * self.proof_validity_s)


@cache
def descriptions() -> Mapping[str, Description]:
    """The description of each setting by its name, section by section."""
    return {
        name: described(name, field)
        for name, field in Settings.model_fields.items()
        if name not in Constants.model_fields
    }
