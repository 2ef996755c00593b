"""All dependencies of a node, as one value: `wiring.py` makes the real ones, the simulator simulated ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from loadmanager.cluster.load_reports import Readings
from loadmanager.cluster.suspicion import Probe
from statechannel.law.codec import NEWEST_VERSION
from statechannel.law.snapshot import CHUNK_BUNDLES
from statechannel.ports import Coordination, Log
from statechannel.runtime.tasks import Blocking, at_once


class Dependencies(msgspec.Struct, frozen=True):
    """All dependencies of a node: ports, clocks, probe and sensors.

    `clock_s` must run on during suspend. `outside` are clocks, by name, that run on while a virtual machine is paused;
    they may be set. `nonce` must differ between any two processes that ever write to the log. `newest_version` is the
    newest record format that this release reads. `chunk_bundles` is the number of bundles in one chunk of a snapshot.
    `run_blocking` runs long work: on a thread in a real process, at once in a simulated one.
    """

    log: Log
    coordination: Coordination
    clock_s: Callable[[], float]
    wall_ms: Callable[[], int]
    nonce: str
    probe: Probe
    sensors: Readings
    newest_version: int = NEWEST_VERSION
    chunk_bundles: int = CHUNK_BUNDLES
    run_blocking: Blocking = at_once
    outside: Mapping[str, Callable[[], float]] = MappingProxyType({})
