"""What is wrong in the cluster, as one broker sees it: worst first, each with its reason and its remedy.

It judges by the same facts as the alerts of `observability/prometheus`, and names the same remedies as
docs/runbooks.md. Read it on the control loop. It walks a bounded number of bundles: a million cost no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from loadmanager.broker.node import Node
from loadmanager.model.policies.model import Kind
from statechannel.audit import Finding, Severity
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

ERROR, WARNING = Severity.ERROR, Severity.WARNING
NAMED = 5
"""How many brokers or bundles a finding names."""
NAMESPACES_LOOKED_AT = 50
"""Among these a bundle without an owner is looked for, to ask why no broker takes it."""
BUNDLES_LOOKED_AT = 200
OVERDUE = 4
"""A move is stuck after so many times `in_flight_timeout_s`; as the alert LoadManagerMoveStuck."""


class HealthFinding(Finding, frozen=True):
    """Something wrong. `why` is its reason, `advice` its remedy, `names` the first brokers, bundles or namespaces.

    `since_ms` is when it began, as far as this broker saw that.
    """

    why: str = ""
    since_ms: int | None = None
    names: tuple[str, ...] = ()


def wall_ms_of(node: Node, at_s: float) -> int:
    """A moment of the node's monotonic clock as a time of its wall clock."""
    return node.world.wall_ms() - round(1000 * (node.world.clock_s() - at_s))


def findings(node: Node) -> list[HealthFinding]:
    """All that is wrong, errors first; empty if nothing is."""
    if node.incarnation is None:
        return [
            HealthFinding(
                "this broker",
                ERROR,
                f"{node.settings.advertised} is not registered, so it neither serves nor sees the cluster",
                why="it is starting, or was fenced and cannot start again; its log says why",
                advice="loadmanager check, with the settings of that broker",
            )
        ]
    found = [*_bundles(node), *_leader(node), *_brokers(node), *_pauses(node), *_clocks(node)]
    return sorted(found, key=lambda each: each.severity is not ERROR)


def _are(count: int, noun: str, one: str = "is", more: str = "are") -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'} {one if count == 1 else more}"


def _first(names: Iterable[object]) -> tuple[str, ...]:
    return tuple(sorted(map(str, names))[:NAMED])


# --- bundles


def _bundles(node: Node) -> Iterator[HealthFinding]:
    yield from _orphans(node)
    yield from _unowned(node)
    yield from _quarantined(node)
    overdue_s = OVERDUE * node.settings.in_flight_timeout_s
    oldest_s = node.seen.moves.oldest_s()
    if oldest_s > overdue_s:
        yield HealthFinding(
            "moves",
            ERROR,
            f"a move has been under way for {oldest_s:.0f} s; the leader should have ended it after {overdue_s:.0f} s",
            why="there is no leader, or the log takes no records",
            advice="loadmanager bundles cancel BUNDLE",
            since_ms=wall_ms_of(node, node.world.clock_s() - oldest_s),
        )


def orphans(node: Node) -> dict[BrokerId, int]:
    """How many bundles each broker holds that is not live."""
    table, now_s = node.channel.table, node.world.clock_s()
    return {
        holder: table.count_held_by(holder) for holder in table.holders() if not node.membership.is_live(holder, now_s)
    }


def _orphans(node: Node) -> Iterator[HealthFinding]:
    held = orphans(node)
    if not held:
        return
    waits = node.membership.safe_mode(node.world.clock_s())
    gone_s = [each.at_s for name in held if (each := node.membership.departed.get(name.name)) is not None]
    yield HealthFinding(
        "bundles",
        ERROR,
        f"{_are(sum(held.values()), 'bundle', 'belongs', 'belong')} to dead brokers, and no broker serves them",
        why=f"the leader does not take them over: {waits}"
        if waits
        else "the leader takes them over once the proofs of their owners have run out",
        advice=f"if this lasts longer than {2 * node.settings.proof_validity_s:.0f} s: loadmanager brokers leader",
        since_ms=wall_ms_of(node, min(gone_s)) if gone_s else None,
        names=_first(broker.name for broker in held),
    )


def _unowned(node: Node) -> Iterator[HealthFinding]:
    """Bundles without an owner: an error if no broker may take them, a warning if they had an owner before.

    Those in quarantine have a finding of their own.
    """
    count = node.channel.table.count_by_state()[State.UNASSIGNED]
    if not count:
        return
    lost, since_s = node.seen.moves.unowned()
    lost = [bundle for bundle in lost if not node.current.placing.quarantine(bundle)]
    since_ms = wall_ms_of(node, since_s) if since_s is not None else None
    if not node.membership.eligible():
        yield HealthFinding(
            "bundles",
            ERROR,
            f"{_are(count, 'bundle', 'has', 'have')} no owner, and no broker may take one",
            why=node.membership.why_none(),
            advice="start a broker, or end a drain: loadmanager brokers drain HOST:PORT --cancel",
            since_ms=since_ms,
            names=_first(lost[:NAMED]),
        )
        return
    nowhere = node.current.placing.why_nowhere
    reasons = {entry.bundle: why for entry in islice(_examples(node, lost), NAMED) if (why := nowhere(entry))}
    if reasons:
        bundle, why = next(iter(reasons.items()))
        yield HealthFinding(
            "bundles",
            ERROR,
            f"{_are(count, 'bundle', 'has', 'have')} no owner, and no broker may take {bundle}",
            why=why,
            advice=f"loadmanager explain {bundle}",
            since_ms=since_ms,
            names=_first(reasons),
        )
    elif lost:
        yield HealthFinding(
            "bundles",
            WARNING,
            f"{_are(len(lost), 'bundle', 'has lost its', 'have lost their')} owner",
            why="no lookup has asked for them since",
            advice=f"the next lookup assigns each; to see why: loadmanager explain {lost[0]}",
            since_ms=since_ms,
            names=_first(lost[:NAMED]),
        )


def _examples(node: Node, lost: Iterable[Bundle]) -> Iterator[Ownership]:
    """Bundles without an owner, none quarantined: those that lost it, then one of each of some namespaces."""
    table, placing = node.channel.table, node.current.placing
    for bundle in lost:
        entry = table.get(bundle)
        if entry is not None and entry.state is State.UNASSIGNED:
            yield entry
    for name in table.namespaces()[:NAMESPACES_LOOKED_AT]:
        known = table.namespace(name)
        if known is not None and table.count_held_in(name) < known.count:
            entries = known.some(0, BUNDLES_LOOKED_AT)
            free = (each for each in entries if each.state is State.UNASSIGNED and not placing.quarantine(each.bundle))
            yield from islice(free, 1)


def _quarantined(node: Node) -> Iterator[HealthFinding]:
    locked = {bundle: each for bundle, each in node.policies.current().bundles.items() if each.quarantined}
    if not locked:
        return
    first = min(locked)
    written = [found.at_ms for each in locked if (found := node.policies.latest(Kind.BUNDLE, str(each))) is not None]
    yield HealthFinding(
        "quarantine",
        ERROR,
        f"{_are(len(locked), 'bundle')} quarantined, and no broker may take {'it' if len(locked) == 1 else 'them'}",
        why=locked[first].quarantined,
        advice=f"loadmanager bundles release-quarantine {first}",
        since_ms=min(written, default=None),
        names=_first(locked),
    )


# --- the leader


def _leader(node: Node) -> Iterator[HealthFinding]:
    membership, leadership = node.membership, node.world.coordination.leadership
    if not membership.connected:
        yield HealthFinding(
            "coordination",
            ERROR,
            "the coordination service does not answer this broker",
            why="crashes are not noticed, and no leader can be elected; owners keep serving while the log answers",
            advice="repair the service or the connection; loadmanager check names what does not answer",
        )
        return
    waits = membership.safe_mode(node.world.clock_s())
    if waits:
        yield HealthFinding(
            "coordination",
            WARNING,
            "safe mode: no broker is declared dead, and bundles of dead brokers are not taken over",
            why=waits,
            advice="it ends by itself; loadmanager channel status",
        )
    if leadership is None or leadership.leader in membership.suspected:
        yield HealthFinding(
            "leader",
            ERROR,
            "there is no leader: bundles of dead brokers are not taken over, and nothing is balanced",
            why="no broker could be elected" if leadership is None else membership.suspected[leadership.leader],
            advice="loadmanager brokers leader; if there is none for long: loadmanager check",
        )


# --- brokers


def _brokers(node: Node) -> Iterator[HealthFinding]:
    membership, now_s = node.membership, node.world.clock_s()
    held = orphans(node)
    dead = {each.peer.broker: each.at_s for each in membership.dead(now_s, node.policies.current().brokers)}
    if dead:
        bundles = sum(held.get(broker, 0) for broker in dead)
        yield HealthFinding(
            "brokers",
            ERROR if bundles else WARNING,
            f"{_are(len(dead), 'broker')} dead: {', '.join(_first(broker.name for broker in dead))}",
            why=f"the session ended without a drain; {_are(bundles, 'bundle', 'waits', 'wait')} to be taken over"
            if bundles
            else "the session ended without a drain; no bundle is left there",
            advice="start the process again; an hour after its end a broker is no longer listed",
            since_ms=wall_ms_of(node, max(dead.values())),
            names=_first(broker.name for broker in dead),
        )
    suspected = {broker: why for broker, why in membership.suspected.items() if membership.peer(broker) is not None}
    if suspected:
        yield HealthFinding(
            "brokers",
            ERROR,
            f"{_are(len(suspected), 'broker')} suspected to be dead: {', '.join(_first(b.name for b in suspected))}",
            why=next(iter(suspected.values())),
            advice="start them again, or repair the route to their addresses: loadmanager brokers list",
            names=_first(broker.name for broker in suspected),
        )
    elif membership.spared:
        names = _first(broker.name for broker in membership.spared)
        yield HealthFinding("brokers", WARNING, "brokers refuse connections", why=membership.why_spared(), names=names)
    behind = [peer.broker.name for peer in membership.peers.values() if peer.registration.behind]
    if behind:
        yield HealthFinding(
            "brokers",
            ERROR,
            f"{_are(len(behind), 'broker')} behind: {', '.join(_first(behind))}",
            why="they cannot read the log, so they get no bundles, and may stop serving those that they have",
            advice="repair the log, or the connection of these brokers to it: loadmanager check",
            names=_first(behind),
        )
    unfit = node.fitness.unfit()
    if unfit:
        yield HealthFinding(
            "brokers",
            ERROR,
            f"{_are(len(unfit), 'broker')} unfit: {', '.join(_first(broker.name for broker in unfit))}",
            why=next(iter(unfit.values())),
            advice="repair the service there, or its machine",
            names=_first(broker.name for broker in unfit),
        )


# --- pauses and clocks


def _pauses(node: Node) -> Iterator[HealthFinding]:
    policies = node.policies.current()
    if policies.cluster.paused:
        found = node.policies.latest(Kind.CLUSTER, "cluster")
        yield HealthFinding(
            "balancing",
            WARNING,
            "balancing of the cluster is paused",
            why=policies.cluster.reason or (found.reason if found is not None else ""),
            advice="loadmanager resume",
            since_ms=found.at_ms if found is not None else None,
        )
    paused = (
        ("--namespace", Kind.NAMESPACE, [name for name, each in policies.namespaces.items() if each.paused]),
        ("--broker", Kind.BROKER, [name for name, each in policies.brokers.items() if each.paused]),
    )
    for option, kind, names in paused:
        if names:
            first = _first(names)
            found = node.policies.latest(kind, first[0])
            yield HealthFinding(
                "balancing",
                WARNING,
                f"balancing of {_are(len(names), kind.value)} paused: {', '.join(first)}",
                why=found.reason if found is not None else "",
                advice=f"loadmanager resume {option} {first[0]}",
                since_ms=found.at_ms if found is not None else None,
                names=first,
            )


def _clocks(node: Node) -> Iterator[HealthFinding]:
    apart = node.time.apart_ms()
    if apart:
        told = ", ".join(f"{name} by {ms / 1000:+.0f} s" for name, ms in sorted(apart.items())[:NAMED])
        me = node.settings.advertised
        yield HealthFinding(
            "clocks",
            WARNING,
            f"clocks of {_are(len(apart), 'broker', 'differs', 'differ')} from that of {me}: {told}",
            why="while clocks of live brokers are a minute apart, logs are not trimmed",
            advice="have NTP set the clocks; of three or more brokers the wrong clock stands out",
            names=_first(apart),
        )
