"""The members of the cluster as this broker knows them: registrations, signs of life on the channel, and suspicions.

Decides who counts as live for lookups and placement. That may be wrong for a moment; ownership never depends on it.
Also has the safe mode: after the coordination service was out of reach, no broker may be declared dead until all known
before are back, or `recovery_grace_s` is over. Pure: the shell gives events and the time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from loadmanager.model.registration import Peer, read_peer
from statechannel.law.record import Action, BrokerId
from statechannel.law.verdict import Change
from statechannel.ports import Connection, Member

SUSPECTED_KEPT = 1_000
"""The most names whose last suspected process is remembered."""
LATE_S = 0.5
"""Whatever a process sent before it died is read within this time."""
ABSENT_S = 10.0
"""A suspected process that is unregistered for this long has died."""
WINDOW_S = 300.0
"""How long a wrong suspicion counts against the share."""
DEAD_KEPT_S = 3_600.0
"""How long a broker that ended without a drain is listed as dead."""
DEAD_KEPT = 1_000
"""The most brokers that are remembered after their registration ended."""


class Suspect(msgspec.Struct):
    """The incarnation under a name that was suspected last while it was registered, and since when.

    `started_ms` is when its process began, 0 if not known. `absent_s` is since when the name has been unregistered.
    """

    broker: BrokerId
    started_ms: int
    at_s: float
    absent_s: float | None = None


class Departed(msgspec.Struct, frozen=True):
    """A broker whose registration ended at `at_s`, as it was registered last."""

    peer: Peer
    at_s: float

    @property
    def is_dead(self) -> bool:
        """Returns True unless it drained before: then it left on purpose."""
        return not self.peer.registration.draining


class Membership:
    """The last known state of the cluster's members."""

    def __init__(self, *, validity_s: float, recovery_grace_s: float, now_s: float) -> None:
        self.validity_s = validity_s
        self._recovery_grace_s = recovery_grace_s
        self.listening_since_s = now_s
        self.heard_s: dict[BrokerId, float] = {}
        self.peers: dict[str, Peer] = {}
        self.departed: dict[str, Departed] = {}
        """Brokers whose registration ended and that have not come back: the last `DEAD_KEPT` that were seen to go."""
        self.revision = 0
        """Grows when a broker comes, goes, registers again, becomes suspected or no longer is."""
        self.connected = False
        self._suspected: dict[BrokerId, str] = {}
        self.spared: tuple[BrokerId, ...] = ()
        """Brokers that others suspect, and that are not `suspected` because too many are; see `judge`."""
        self._once_suspected: dict[str, Suspect] = {}
        self._reported_s: dict[tuple[BrokerId, BrokerId], float] = {}
        """Since when an observer reports a suspect, without a break."""
        self._wrote_s: dict[BrokerId, float] = {}
        """When each suspect last wrote to the channel or its liveness node, as read here."""
        self._eligible: list[Peer] | None = None
        self._raw: Mapping[str, Member] = {}
        self._awaited: set[str] = set()
        self._awaited_until_s = 0.0

    # --- feeding

    def saw_members(self, members: Mapping[str, Member], connection: Connection, now_s: float) -> None:
        """Take the watched values of the coordination service, after a change."""
        connected = connection is Connection.CONNECTED
        if not connected:
            if self.connected:
                still = self._awaited if now_s < self._awaited_until_s else set[str]()
                self._awaited = still | self.peers.keys()  # brokers of an earlier outage may still come back
            self.connected = False
            return
        if not self.connected:
            self._awaited_until_s = now_s + self._recovery_grace_s
        self.connected = True
        self._note_departed(members, now_s)
        self.peers = {
            name: self.peers[name] if self._raw.get(name) == member and name in self.peers else read_peer(member)
            for name, member in members.items()
        }
        if self._raw != members:
            self._changed()
            for member in members.values():
                if self._raw.get(member.broker.name) != member:
                    self._wrote(member.broker, now_s)
        self._raw = dict(members)
        self._awaited -= self.peers.keys()

    def _note_departed(self, members: Mapping[str, Member], now_s: float) -> None:
        gone = {name: Departed(peer, now_s) for name, peer in self.peers.items() if name not in members}
        kept = {name: each for name, each in self.departed.items() if name not in members and name not in gone} | gone
        self.departed = dict(list(kept.items())[-DEAD_KEPT:])

    def dead(self, now_s: float, named: Collection[str] = ()) -> list[Departed]:
        """Brokers that ended without a drain in the last hour, or earlier if they are among the `named`."""
        return [
            each
            for name, each in self.departed.items()
            if each.is_dead and (now_s - each.at_s <= DEAD_KEPT_S or name in named)
        ]

    def saw_change(self, change: Change, now_s: float) -> None:
        """Take an accepted record. A no-op is a sign of life of its author, any record one against suspicion."""
        self._wrote(change.record.actor, now_s)
        if change.record.action is Action.NOOP:
            self.heard_s[change.record.actor] = now_s

    def missed_changes(self, now_s: float) -> None:
        """The replica went on from a snapshot and may have missed signs of life: listening begins again."""
        self.listening_since_s = now_s

    # --- asking

    def peer(self, broker: BrokerId) -> Peer | None:
        """The registration of exactly this incarnation."""
        peer = self.peers.get(broker.name)
        return peer if peer is not None and peer.broker == broker else None

    def is_live(self, broker: BrokerId, now_s: float) -> bool:
        """Whether to send clients to this incarnation. Without the coordination service every known one counts."""
        if broker in self.suspected:
            return False
        registered = self.peers.get(broker.name)
        if registered is not None and registered.broker.incarnation > broker.incarnation:
            return False
        if self.peer(broker) is not None or not self.connected:
            return True
        return now_s - self.heard_s.get(broker, float("-inf")) <= 2 * self.validity_s

    def _wrote(self, broker: BrokerId, now_s: float) -> None:
        if broker in self._wrote_s:
            self._wrote_s[broker] = now_s

    @property
    def suspected(self) -> dict[BrokerId, str]:
        """Suspected incarnations, each with the evidence. Set as a whole."""
        return self._suspected

    @suspected.setter
    def suspected(self, suspected: dict[BrokerId, str]) -> None:
        if suspected.keys() != self._suspected.keys():
            self._changed()
        self._suspected = suspected

    def judge(self, suspicions: Iterable[tuple[BrokerId, BrokerId]], now_s: float) -> None:
        """Set `suspected` by these suspicions, (observer, suspect), and `spared`.

        A suspicion does not count against a process that was suspected and registered again. Nor does it if the suspect
        wrote to the channel or its liveness node after this observer began to report it: what the observer meets is
        no death. At most a third of the brokers, rounded, but one in any case, are suspected within the window, unless
        they are known to have died. For others only the end of the session counts. So a fault that lets healthy brokers
        refuse connections takes few of them.
        """
        reports = list(suspicions)
        self._reported_s = {report: self._reported_s.get(report, now_s) for report in reports}
        self._wrote_s = {suspect: self._wrote_s.get(suspect, float("-inf")) for _, suspect in reports}
        refuted = {report for report, at_s in self._reported_s.items() if self._wrote_s[report[1]] > at_s + LATE_S}
        self._follow_up(now_s)
        counted = {name for name, each in self._once_suspected.items() if self._counts(each, now_s)}
        most = max(1, (len(self.peers.keys() | counted) + 1) // 3)
        spared: dict[BrokerId, None] = {}

        def admit(suspect: BrokerId) -> bool:
            peer, before = self.peer(suspect), self._once_suspected.get(suspect.name)
            if peer is None or (before is not None and before.broker == suspect and suspect.name in counted):
                return True
            if len(counted | {suspect.name}) > most:
                spared[suspect] = None
                return False
            counted.add(suspect.name)
            self._once_suspected.pop(suspect.name, None)
            self._once_suspected[suspect.name] = Suspect(suspect, peer.registration.started_ms, now_s)
            if len(self._once_suspected) > SUSPECTED_KEPT:
                del self._once_suspected[next(iter(self._once_suspected))]
            return True

        self.suspected = suspected_by(reports, self.peers, self.proven(), admit, refuted)
        self.spared = tuple(spared)

    def _follow_up(self, now_s: float) -> None:
        """Note whether suspected processes died or lived."""
        for name, each in tuple(self._once_suspected.items()):
            peer = self.peers.get(name)
            each.absent_s = None if peer is not None else now_s if each.absent_s is None else each.absent_s
            if peer is not None and each.started_ms and peer.registration.started_ms != each.started_ms:
                del self._once_suspected[name]  # another process

    def _counts(self, each: Suspect, now_s: float) -> bool:
        """Returns True if a suspicion counts against the share: it was wrong, or that is not known yet."""
        if each.absent_s is not None:
            return now_s - each.absent_s < ABSENT_S
        return now_s - each.at_s < WINDOW_S

    def proven(self) -> set[BrokerId]:
        """Registered incarnations of processes that were suspected and lived: refused connections prove nothing."""
        peers = [(self.peers.get(name), each) for name, each in self._once_suspected.items() if each.started_ms]
        return {
            peer.broker
            for peer, each in peers
            if peer is not None
            and peer.registration.started_ms == each.started_ms
            and peer.broker.incarnation > each.broker.incarnation
        }

    def why_spared(self) -> str:
        """Why suspected brokers count as live, for people; empty if there are none."""
        if not self.spared:
            return ""
        names = ", ".join(sorted(broker.name for broker in self.spared))
        return (
            f"connections to {names} are refused, too: a third of the brokers at most count as dead by that alone "
            f"within {WINDOW_S:.0f} s, the others when their sessions end; is there a firewall between brokers?"
        )

    def _changed(self) -> None:
        self.revision += 1
        self._eligible = None

    def eligible(self) -> list[Peer]:
        """Brokers that may be given bundles, by name: registered, not suspected, draining or behind.

        The same list object until something of it changes.
        """
        if self._eligible is None:
            self._eligible = [self.peers[name] for name in sorted(self.peers) if self.is_eligible(self.peers[name])]
        return self._eligible

    def why_none(self) -> str:
        """Why no broker may be given bundles, or none but the eligible ones."""
        if not self.peers:
            return "no broker is registered"
        reasons = Counter(why for peer in self.peers.values() if (why := self._why_not(peer)))
        told = ", ".join(f"{n} {'is' if n == 1 else 'are'} {why}" for why, n in sorted(reasons.items()))
        nobody = "no other broker" if self.eligible() else "no broker"
        return f"{nobody} takes bundles: {told}" if told else f"{nobody} is registered"

    def _why_not(self, peer: Peer) -> str:
        if peer.registration.draining:
            return "draining"
        if peer.registration.behind:
            return "behind"
        return "suspected to be down" if peer.broker in self.suspected else ""

    def is_eligible(self, peer: Peer) -> bool:
        """Whether a registered broker may be given bundles."""
        return not self._why_not(peer)

    def safe_mode(self, now_s: float) -> str | None:
        """Why an absent broker must not be declared dead at present, None if it may."""
        if not self.connected:
            return "the coordination service is out of reach"
        self._awaited -= self.peers.keys()
        self._awaited -= {broker.name for broker in self.suspected}
        if self._awaited and now_s < self._awaited_until_s:
            return f"waiting for {', '.join(sorted(self._awaited))} to come back"
        self._awaited.clear()
        return None


def suspected_by(
    suspicions: Iterable[tuple[BrokerId, BrokerId]],
    peers: Mapping[str, Peer],
    proven: Collection[BrokerId] = (),
    admit: Callable[[BrokerId], bool] = lambda _suspect: True,
    refuted: Collection[tuple[BrokerId, BrokerId]] = (),
) -> dict[BrokerId, str]:
    """Incarnations that refuse connections from enough registered brokers: two, or all others if there are fewer.

    `suspicions` are (observer, suspect), those that hold now. Suspicions of a suspected broker do not count. A broker
    that suspects an unsuspected one counts as alive: its machine is cut off, or the other's is. So where a firewall
    rejects all connections, no broker is suspected. Nor is one in `proven`, which lives, or one that `admit` refuses.
    Those in `refuted` are no evidence against the suspect.
    """
    observers_of: dict[BrokerId, set[str]] = {}
    suspects_of: dict[str, list[BrokerId]] = {}
    for observer, suspect in suspicions:
        peer = peers.get(observer.name)
        if peer is not None and peer.broker == observer and observer.name != suspect.name:
            if (observer, suspect) not in refuted:
                observers_of.setdefault(suspect, set()).add(observer.name)
            suspects_of.setdefault(observer.name, []).append(suspect)
    by_name: dict[str, list[BrokerId]] = {}
    for suspect in observers_of:
        by_name.setdefault(suspect.name, []).append(suspect)
    suspected: dict[BrokerId, str] = {}
    fallen: set[str] = set()
    count = len(peers)

    def lives(suspect: BrokerId) -> bool:
        return suspect in proven or any(each not in suspected for each in suspects_of.get(suspect.name, ()))

    waiting = deque(sorted(observers_of, key=lambda suspect: (-len(observers_of[suspect]), suspect)))
    while waiting:
        suspect = waiting.popleft()
        witnesses = sorted(observers_of.get(suspect, set()) - fallen)
        others = count - len(fallen) - (suspect.name in peers and suspect.name not in fallen)
        if suspect in suspected or not witnesses or len(witnesses) < min(2, others) or lives(suspect):
            continue
        if not admit(suspect):
            continue
        suspected[suspect] = f"{suspect} refuses connections from {', '.join(witnesses)}"
        if suspect.name in peers:
            fallen.add(suspect.name)
        for observer in observers_of[suspect]:  # it told the truth, so its suspicion does not show that it lives
            waiting.extend(by_name.get(observer, ()))
    return suspected
