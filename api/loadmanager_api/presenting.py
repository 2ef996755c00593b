"""Turns a node's state into what is shown. Reads only; decides nothing but the words."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Any

import msgspec

from loadmanager.broker.node import Node
from loadmanager.diagnostics.doctor.hiding import HIDDEN, hide
from loadmanager.model.load import BrokerLoadData
from loadmanager.model.registration import Peer
from loadmanager_api.bundle_loads import Loads
from loadmanager_api.schemas import BrokerShown, BundleDetail, BundleShown
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

LOOKED_AT_ONCE = 2_000


def bundle_shown(node: Node, entry: Ownership, loads: Loads) -> BundleShown:
    """One row of the bundle list."""
    return BundleShown(**_bundle_fields(node, entry, loads))


def bundle_detail(node: Node, entry: Ownership) -> BundleDetail:
    """Everything about one bundle."""
    return BundleDetail(
        **_bundle_fields(node, entry, Loads(node)),
        served_here=node.serving is not None and node.serving.serving(entry.bundle),
        cuts=[f"0x{cut:08x}" for cut in entry.boundaries],
        load=_bundle_load(node, entry),
    )


def _bundle_fields(node: Node, entry: Ownership, loads: Loads) -> dict[str, Any]:
    table, holder, load = node.channel.table, entry.holder, loads.of(entry)
    return {
        "bundle": str(entry.bundle),
        "namespace": entry.bundle.namespace,
        "range": entry.bundle.range,
        "state": entry.state.value,
        "owner": holder.name if holder else None,
        "incarnation": holder.incarnation if holder else None,
        "owner_live": holder is not None and node.membership.is_live(holder, node.world.clock_s()),
        "target": entry.target.name if entry.target else None,
        "partition": table.partition_of(entry.bundle.namespace),
        "revision": entry.revision,
        "token": str(table.token(entry)),
        "last_action": entry.action.value,
        "last_actor": str(entry.by),
        "waits": _waits(node, entry),
        "rate_msg_s": load.rate_msg_s if load else None,
        "rate_bytes_s": load.throughput_bytes_s if load else None,
    }


def _waits(node: Node, entry: Ownership) -> str | None:
    """Why no broker may get a bundle without an owner; None if one may."""
    if entry.state is not State.UNASSIGNED or node.incarnation is None:
        return None
    why = node.incarnation.placing.quarantine(entry.bundle)
    return f"quarantined: {why}; to end it: loadmanager bundles release-quarantine {entry.bundle}" if why else None


def _bundle_load(node: Node, entry: Ownership) -> dict[str, Any] | None:
    report = node.views.bundles.get(entry.holder.name) if entry.holder else None
    if report is None or report.broker != entry.holder:
        return None
    loads = (loaded.load for loaded in report.bundles if loaded.bundle == entry.bundle)
    load = next(loads, None)
    return None if load is None else {**msgspec.to_builtins(load), "sampled_ms": report.sampled_ms}


def broker_shown(node: Node, broker: BrokerId, peer: Peer | None) -> BrokerShown:
    """One broker; `peer` is None if this incarnation is not registered."""
    load = node.views.brokers.get(broker.name)
    shown = BrokerShown(
        broker=broker.name,
        incarnation=broker.incarnation,
        registered=peer is not None,
        live=node.membership.is_live(broker, node.world.clock_s()),
        leader=leader_of(node) == broker,
        draining=peer is not None and (peer.registration.draining or _kept_drained(node, broker)),
        behind=peer is not None and peer.registration.behind,
        suspected=node.membership.suspected.get(broker),
        unfit=node.fitness.why(broker) or None,
        bundles=node.channel.table.count_held_by(broker),
        load=load_shown(load) if load is not None and load.broker == broker else None,
    )
    return shown if peer is None else shown.model_copy(update=_registered_fields(peer))


def load_shown(load: BrokerLoadData) -> dict[str, Any]:
    """A broker's load, with names for all of its numbers."""
    shown: dict[str, Any] = msgspec.to_builtins(load)
    return shown | {"io": msgspec.structs.asdict(load.io)}


def _kept_drained(node: Node, broker: BrokerId) -> bool:
    policy = node.policies.current().brokers.get(broker.name)
    return policy is not None and policy.drain


def _registered_fields(peer: Peer) -> dict[str, Any]:
    registration = peer.registration
    return {
        "admin_url": registration.admin_url,
        "urls": dict(registration.urls),
        "version": registration.version,
        "failure_domain": registration.failure_domain,
        "capacity": dict(registration.capacity),
        "properties": dict.fromkeys(registration.properties, HIDDEN),  # as in the settings: people write what they like
        "started_ms": registration.started_ms,
    }


def no_broker(node: Node, broker: str) -> str:
    """What to say of a broker that is not registered."""
    return f"there is no broker {broker}; registered: {', '.join(sorted(node.membership.peers)) or 'none'}"


def leader_of(node: Node) -> BrokerId | None:
    """The leader as last seen; None if it is known to be dead."""
    leadership = node.world.coordination.leadership
    if leadership is None or leadership.leader in node.membership.suspected:
        return None
    return leadership.leader


async def bundles_after(
    node: Node, namespace: str | None, after: Bundle | None, state: State | None, owner: str | None, most: int
) -> list[Ownership]:
    """The first matching bundles in the order of their names, after `after`.

    Matches may be rare, and the last of a million: the loop gets its turn meanwhile.
    """
    table, found, looked_at = node.channel.table, list[Ownership](), 0
    for name in table.namespaces() if namespace is None else [namespace]:
        known = table.namespace(name)
        if known is None or (after is not None and name < after.namespace):
            continue
        begin = bisect_left(known.lower_bounds, after.lo) if after is not None and name == after.namespace else 0
        for at in range(begin, known.count, LOOKED_AT_ONCE):
            some = known.some(at, at + LOOKED_AT_ONCE)
            for entry in some:
                if (after is None or entry.bundle > after) and fits(entry, state, owner):
                    found.append(entry)
                    if len(found) == most:
                        return found
            looked_at += len(some)
            if looked_at >= LOOKED_AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)
    return found


def fits(entry: Ownership, state: State | None, owner: str | None) -> bool:
    """Whether it is in this state, and this owner's: host:port, or host:port#incarnation."""
    if state is not None and entry.state is not state:
        return False
    return owner is None or (entry.holder is not None and owner in (entry.holder.name, str(entry.holder)))


def settings_shown(node: Node) -> dict[str, Any]:
    """All settings; those that are passed to the clients of Kafka and ZooKeeper may be secret and are hidden.

    So are secrets within addresses and properties, as far as their form and name shows them.
    """
    shown: dict[str, Any] = node.settings.model_dump(mode="json")
    return hide(shown)
