"""Options of a demo, and the settings that its brokers get."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from loadmanager.broker.wiring import check_servers, file_of

NAMESPACE = "demo/counters"
BUNDLES = 48
HEADROOM = 1.7
"""A broker's declared capacity, as a multiple of its even share of the load."""


class Options(msgspec.Struct, frozen=True):
    """As given on the command line. Without `log` everything is in SQLite files, in `keep` or a temporary directory."""

    seconds: float = 40.0
    brokers: int = 3
    rate_s: float = 300.0
    budget_s: float = 10.0
    """Seconds after which a request counts as failed."""
    plain: bool = False
    json: Path | None = None
    log: str | None = None
    coordination: str | None = None
    keep: Path | None = None
    picture: Path | None = None
    """Where the timeline is written."""

    def check(self) -> None:
        """Raises ValueError with what to do."""
        if self.seconds < 10:
            raise ValueError("give the demo at least 10 seconds: it plays two failovers and a drain")
        if not 2 <= self.brokers <= 6:
            raise ValueError("the demo runs 2 to 6 brokers")
        if self.keep is not None and self.keep.exists() and (not self.keep.is_dir() or any(self.keep.iterdir())):
            raise ValueError(f"--keep {self.keep}: give a new or an empty folder, each demo is a cluster of its own")
        _check_address("--log", self.log, "sqlite:FILE", "kafka://host:port")
        _check_address("--coordination", self.coordination, "sqlite:FILE", "zookeeper://host:port")
        if self.log is not None and self.log.startswith("kafka:") and self.coordination is None:
            raise ValueError("with --log kafka://…, say where ZooKeeper is: --coordination zookeeper://host:port")


def _check_address(option: str, address: str | None, *forms: str) -> None:
    if address is not None and not any(address.startswith(form.partition(":")[0] + ":") for form in forms):
        raise ValueError(f"{option} {address!r} is not an address; write {' or '.join(forms)}")
    if address is not None and address.startswith("sqlite:"):
        file_of(address)
    elif address is not None:
        check_servers(address, address.partition(":")[2].removeprefix("//").partition("/")[0])


def cluster_settings(options: Options, directory: Path) -> dict[str, object]:
    """The settings that all brokers and the observer share; intervals are short, so that there is something to see."""
    run = secrets.token_hex(3)
    capacity = 2 * HEADROOM * options.rate_s / options.brokers  # a request is a message in and one out
    settings: dict[str, object] = {
        "cluster": f"demo-{run}",
        "topic_prefix": f"demo-{run}.",
        "log": options.log or f"sqlite:{directory}/cluster.db",
        "development": True,
        "capacity": {"rate_msg_s": round(capacity)},
        "load_window_s": 6.0,
        "load_report_max_interval_s": 5.0,
        "balancing_interval_s": 2.0,
        "bundle_rest_s": 15.0,
        "drain_timeout_s": 15.0,
    }
    if options.coordination is not None:
        settings["coordination"] = options.coordination
    return settings


def onlooker_settings(settings: dict[str, object]) -> dict[str, object]:
    """Settings of the demo's own process: messages of Kafka's client would spoil the picture."""
    quiet = {"kafka": {"log_level": "0"}} if str(settings["log"]).startswith("kafka:") else {}
    return {**settings, **quiet}
