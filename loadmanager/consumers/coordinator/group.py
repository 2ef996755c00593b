"""Decides for one group who may read which partition. Pure: all times come in, all records go out.

A partition has one holder at most: the member that was granted it, until that member is known to have stopped reading.
There are three ways to know it:

* it acknowledges a revision in which the partition is not its own any more (`Beat.acked`): it has stopped, and has
  committed what it did;
* it leaves;
* its session ends. A member counts its lease from before it sent an answered heartbeat. The coordinator counts it from
  when it received the heartbeat, plus a slack, so the member stops first.

A member that keeps its partitions waits for no other: each partition changes hands by itself, as soon as its holder
has given it up. Acknowledgements may come late, twice and out of order. What a revision gave up never changes, and a
partition that is granted again later is granted in a higher revision. A heartbeat that joined may arrive again long
after its member left. So each membership has an epoch, and heartbeats of another epoch are refused.

An answer is a promise, so its content must be in the log first. The shell takes `written()` after each event, appends
it, and only then sends answers. A coordinator that learns that its token is no longer the highest sends none.

Where members divide the partitions (`Mode.CLIENT`), they claim what they should read. Every member computes the whole
division from the same view, by the same strategy as the coordinator, and claims its part. A slow member, or one that
claims nothing, strands no partition: the coordinator computes a proposal of its own, and unclaimed partitions go to the
members named there. A claim counts until its member makes another one, so that a new generation moves nothing before it
has claims of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple, Self

import msgspec

from loadmanager.consumers.coordinator.lag_watch import is_uneven
from loadmanager.consumers.coordinator.measures import Measures, named
from loadmanager.consumers.coordinator.messages import OVER, VERSIONS, Answer, Beat, Refusal, View, Why, check
from loadmanager.consumers.coordinator.records import (
    GroupRecord,
    MemberRecord,
    Mode,
    Partition,
    Rebalance,
    Record,
    Settings,
    Subscription,
    Written,
    by_topic,
    encoded,
    flat,
    key_of,
    listed,
)
from loadmanager.consumers.coordinator.targets import (
    NEAR,
    NEARBY,
    WEIGHTED,
    Situation,
    Targets,
    check_settings,
    divided,
    view_of,
)
from statechannel.law.record import Token


class Claim(msgspec.Struct, frozen=True):
    """What a member claims to read, computed for a generation."""

    generation: int
    partitions: frozenset[Partition]


class Claims:
    """The claims of one generation and those before that still count, beside its proposal."""

    def __init__(self, proposal: Mapping[Partition, str], claims: Mapping[str, Claim | None]) -> None:
        self.proposal = proposal
        self._claims: dict[str, Claim] = {}
        self._claimers: dict[Partition, dict[str, int]] = {}
        for member, claim in claims.items():
            if claim is not None:
                self.put(member, claim)

    def put(self, member: str, claim: Claim) -> Collection[Partition]:
        """A member claims this from now on; of these partitions others may have become the readers."""
        former = self._claims.get(member)
        before = frozenset[Partition]() if former is None else former.partitions
        for partition in before - claim.partitions:
            self._claimers.get(partition, {}).pop(member, None)
        for partition in claim.partitions & self.proposal.keys():
            self._claimers.setdefault(partition, {})[member] = claim.generation
        self._claims[member] = claim
        return (before | claim.partitions) & self.proposal.keys()

    def reader(self, partition: Partition, present: str | None) -> str:
        """The member that should read a partition of the proposal; `present` is the one that should now.

        Among several claimers, one with a claim of the newest generation wins: the present one, or the proposed one.
        """
        proposed, claimers = self.proposal[partition], self._claimers.get(partition)
        if not claimers:
            return proposed
        newest = max(claimers.values())
        by = [member for member, generation in claimers.items() if generation == newest]
        return next((each for each in (present, proposed) if each in by), min(by))


SLACK_MS, DRIFT = 100, 0.01
"""A session lasts so much longer here than at the member: clocks may run apart by this share."""


class Member(msgspec.Struct):
    """What it said, how long its session lasts, and what it may read."""

    subscription: Subscription
    epoch: int
    ends_ms: int = 0
    seen_ms: int = 0
    """When its last heartbeat came."""
    revision: int = 0
    granted: dict[Partition, int] = {}
    """Its partitions, each with the revision in which it got it."""
    revoked: dict[Partition, int] = {}
    """Those among them that it was told to give up, each with the revision that told it so."""
    gives_up_by_ms: int | None = None
    """When it has had its time to give up `revoked`; then its session is not prolonged any more."""
    prolonged: bool = True
    sequence: int = 0
    commits: dict[Partition, int] = {}
    """The sequence of the last commit of each partition."""
    process: str = ""
    """Which one is the member: another one cannot join under its id."""
    claim: Claim | None = None

    @classmethod
    def restored(cls, record: MemberRecord, now_ms: int, remaining_ms: int | None) -> Self:
        """As a former coordinator left it; `remaining_ms` of its session, or a whole one if that is not known."""
        granted, revoked = flat(record.granted), flat(record.revoked)
        member = cls(record.subscription, record.epoch, 0, now_ms, record.revision, granted, revoked)
        member.process = record.process
        member.ends_ms = member.session_from(now_ms) if remaining_ms is None else now_ms + max(0, remaining_ms)
        if record.claims is not None:
            claimed = frozenset((topic, each) for topic, its in record.claims.items() for each in its)
            member.claim = Claim(record.claimed_for, claimed)
        if revoked:
            member.gives_up_by_ms = now_ms + record.subscription.revoke_timeout_ms
        return member

    def session_from(self, now_ms: int) -> int:
        """When a session that is prolonged now ends."""
        timeout_ms = self.subscription.session_timeout_ms
        return now_ms + timeout_ms + SLACK_MS + int(timeout_ms * DRIFT)

    def subscribe(self, wanted: Subscription) -> bool:
        """Store the member's subscription. Returns True if it changed. Its session never gets shorter, because a lease
        granted earlier may last as long as the longest."""
        longest_ms = max(wanted.session_timeout_ms, self.subscription.session_timeout_ms)
        before = self.subscription
        self.subscription = msgspec.structs.replace(wanted, session_timeout_ms=longest_ms)
        return self.subscription != before

    def record(self, weights: Mapping[Partition, float]) -> MemberRecord:
        """What the log keeps of it."""
        claim = self.claim or Claim(0, frozenset())
        claims = None if self.claim is None else listed(claim.partitions)
        granted, revoked = by_topic(self.granted), by_topic(self.revoked)
        weighed = by_topic({each: weights[each] for each in self.granted if each in weights})
        return MemberRecord(
            self.subscription,
            self.epoch,
            self.revision,
            granted,
            revoked,
            claims,
            claim.generation,
            self.process,
            weighed,
        )


LARGE = 1_000
"""Members and partitions of a group that is divided, or restored, on a thread: 1,000 take up to 10 ms, 100,000 a
second and more."""


class Event(NamedTuple):
    """Why a group is to be divided again. It counts as a rebalance only if something moves, unless `always`. The newest
    weights count only if `weigh`; `if_uneven`: only if by them one member has too much to read."""

    why: str
    always: bool
    weigh: bool
    if_uneven: bool = False


class Division(NamedTuple):
    """The assignment after some events, by these settings. `changed` partitions are in the order in which members are
    told, one after the other."""

    events: tuple[Event, ...]
    settings: Settings
    weights: Mapping[Partition, float] | None
    targets: Targets
    changed: list[Partition]
    view: View | None = None
    claims: Claims | None = None


class Group:
    """One group, at the owner of its bundle.

    A small group is divided again with each event by which that may change. A `large` one is when the shell does so:
    it has `plan()` computed on a thread, gives the result to `take`, and has it carried out by `place`. Until then who
    should read what stays as it is, without members that are gone.
    """

    def __init__(
        self,
        name: str,
        settings: Settings | None = None,
        wall_offset_ms: int = 0,
        rebalances: Sequence[Rebalance] = (),
    ) -> None:
        """`wall_offset_ms`: from the clock of all events to the time since 1970. `rebalances`: former ones."""
        self.name = name
        self.settings = settings or Settings()
        self.creator = ""
        """The principal that created it, as its record says."""
        self._writer = ""
        self._empty_s = 0.0
        self._was_empty = False
        self._reported: Mapping[str, int] = {}
        self.generation = 0
        """Grows with every change of who should read what; where members decide that, of what they decide it by."""
        self._members: dict[str, Member] = {}
        self._holders: dict[Partition, str] = {}
        self._topics: Mapping[str, int] = {}
        self._racks: Mapping[str, Mapping[int, str]] | None = None
        self._weights: Mapping[Partition, float] | None = None
        self._weighed: Mapping[Partition, float] | None = None
        """The weights by which it was last decided who should read what: members' records have them."""
        self._targets = Targets(self.settings.strategy, {})
        self.large: float = LARGE
        self._events: list[Event] = []
        """Those that the division does not know yet."""
        self._is_planned = False
        """A division is being computed."""
        self._to_place: list[Partition] = []
        """What is left to be placed of the last division; `_rebalance` measures that, if it counts as one."""
        self._rebalance: int | None = None
        self._skipped: set[Partition] = set()
        """Free, but given to a member that is gone, or to one that does not read it any more."""
        self._to_write: dict[str, None] = {}
        """Members whose records become due after that."""
        self._view: View | None = None
        """Where members divide the partitions: what they do it by in this generation; None if the next one is due."""
        self._claims = Claims({}, {})
        self._withheld: set[Partition] = set()
        self.is_unsettled: Callable[[Partition], bool] = lambda _: False
        """True while a commit of the partition is under way: no other member gets it, or reads what is committed."""
        self.measures = Measures(self._counts, wall_offset_ms, rebalances)
        self._due: dict[str, None] = {}
        """Members whose records are due, in order; "" if just the group's own is."""

    @classmethod
    def restored(
        cls,
        name: str,
        records: Mapping[str, Record],
        now_ms: int,
        remaining_ms: Mapping[str, int] | None = None,
        wall_offset_ms: int = 0,
    ) -> Self:
        """The group as a former owner of its bundle left it in the log: `records` by member, "" for the group's own.

        A member has a whole session from now on, for the former owner may have answered it a moment ago; or what the
        former owner says that is left of it (`remaining_ms`). All records are due, under the new owner's token.
        """
        found = records.get("")
        own = found if isinstance(found, GroupRecord) else GroupRecord()
        group = cls(name, own.settings, wall_offset_ms, own.rebalances)
        group.large = inf  # this is on a thread already
        epochs = [record.epoch for record in records.values() if isinstance(record, MemberRecord)]
        group.generation = max(own.generation, *epochs, 0)
        for member, record in records.items():
            if isinstance(record, MemberRecord):
                restored = Member.restored(record, now_ms, (remaining_ms or {}).get(member))
                group._members[member] = restored
                group._holders.update(dict.fromkeys(restored.granted, member))
                group._weighed = {**(group._weighed or {}), **flat(record.weights)} or None
        group._weights = group._weighed
        group._topics = dict(own.topics)
        group._empty_s = own.empty_s
        group._reported = own.reported
        group.creator = own.creator
        kept = {each: holder for each, holder in group._holders.items() if not group._is_revoked(each)}
        group._targets = Targets(group.settings.strategy, kept)
        group._due = dict.fromkeys(group._members or ("",))
        if group._members:
            group._retarget("another coordinator began", now_ms, always=False)
        group.large = LARGE
        return group

    # --- events

    def heartbeat(self, name: str, beat: Beat, now_ms: int) -> Answer | Refusal:
        """A member lives, and has given up what is not in the revision that it acknowledges. The first one joins.

        Raises Invalid for a subscription that makes no sense.
        """
        if beat.subscription.version not in VERSIONS:
            spoken = f"{VERSIONS[0]} to {VERSIONS[-1]}"
            return Refusal(Why.UNSUPPORTED_VERSION, f"this coordinator speaks the versions {spoken} of the protocol")
        check(name, beat.subscription, beat.process)
        known = self._members.get(name)
        if beat.epoch and (known is None or known.epoch != beat.epoch):
            return OVER
        if known is not None and not beat.epoch and known.process != beat.process:
            left_s = (known.ends_ms - now_ms) / 1000
            return Refusal(
                Why.ID_IN_USE,
                f"another process is the member {name}: end it, or take another id. Its session ends in {left_s:.1f} s "
                "if it does not ask again",
            )
        if known is None:
            self._members[name] = Member(beat.subscription, self.generation + 1, seen_ms=now_ms, process=beat.process)
            self._due[name] = None
            self._retarget(f"{named([name])} joined", now_ms)
        if beat.sequence > self._members[name].sequence:
            self._take(name, beat, now_ms)
        return self.answer(name, beat.generation)

    def leave(self, name: str, now_ms: int, process: str | None = None) -> None:
        """A member has stopped reading and goes. Nothing happens if it is not there, or is another process."""
        if name in self._members and process in (None, self._members[name].process):
            self._members[name].seen_ms = now_ms
            self._drop([name], f"{named([name])} left", now_ms)

    def expire(self, now_ms: int) -> list[str]:
        """The members whose sessions are over; they are no members any more."""
        over = [name for name, member in self._members.items() if member.ends_ms <= now_ms]
        if over:
            self._drop(over, f"the session of {named(over)} is over", now_ms)
        return over

    def set_topics(self, topics: Mapping[str, int], now_ms: int) -> None:
        """The topics that exist, with their numbers of partitions; those of other groups too. The mapping is kept."""
        before, self._topics = self._topics, topics
        changed = sorted(topic for topic in self.wanted_topics() if before.get(topic) != topics.get(topic))
        if changed:
            size = topics.get(changed[0])
            now = "is gone" if size is None else f"has {size} partitions"
            more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
            self._retarget(f"topic {changed[0]} {now}{more}", now_ms, weigh=True)

    def set_racks(self, racks: Mapping[str, Mapping[int, str]], now_ms: int) -> None:
        """By topic, where partitions are led while all servers run; those of other groups too. The inner mappings are
        kept."""
        known = {topic: racks[topic] for topic in self.wanted_topics() if topic in racks}
        if known != self._racks:
            self._racks = known
            if self.settings.strategy in NEAR:
                self._retarget("its partitions are in other racks", now_ms, always=False)

    def configure(self, settings: Settings, now_ms: int) -> None:
        """Change strategy, its configuration, or mode while members read. Raises Invalid for what makes no sense."""
        check_settings(settings)
        if settings != self.settings:
            changes = (
                ("strategy", settings.strategy, self.settings.strategy),
                ("mode", settings.mode, self.settings.mode),
            )
            why = ", ".join(f"{name} {new}" for name, new, old in changes if new != old) or "its config changed"
            self.settings = settings
            self._targets = self._targets.by(settings.strategy)
            for name, member in self._members.items():
                if member.claim is not None:
                    member.claim = None
                    self._to_write[name] = None
            self._retarget(why, now_ms, weigh=True)

    def rebalance(self, weights: Mapping[Partition, float] | None, now_ms: int) -> None:
        """Run the strategy again, with these rates or lags."""
        self._weights = weights
        self._retarget("asked for" if weights is None else "asked for, by lag", now_ms, weigh=True)

    def weigh(self, weights: Mapping[Partition, float], now_ms: int) -> None:
        """Use these weights of the partitions from now on. If nothing moves, and one member has much more to read than
        the others, the group is rebalanced; this counts as a rebalance only if a partition moves."""
        self._weights = weights
        moves = any(member.revoked for member in self._members.values())
        if self.settings.mode is Mode.SERVER and self.settings.strategy == WEIGHTED and not (moves or self.is_divided):
            self._events.append(Event("one member had too much to read", always=False, weigh=True, if_uneven=True))
            self._divide(now_ms)

    def withhold(self, partitions: Collection[Partition], now_ms: int) -> None:
        """No member may read these until they are given back; the holder of one is told to give it up. This is not
        recorded: another coordinator does not know it."""
        self._withheld.update(partitions)
        self._place(partitions, now_ms)

    def give_back(self, partitions: Collection[Partition], now_ms: int) -> None:
        """The targets of these may read them, each after a former holder has given it up."""
        self._withheld.difference_update(partitions)
        self._place(partitions, now_ms)

    def settled(self, partitions: Collection[Partition], now_ms: int) -> None:
        """Commits of these have ended: who should read them may."""
        self._place(partitions, now_ms)

    def passed(self, step_s: float) -> float:
        """So much time has passed since the last call; returns for how long the group has had no members, at least."""
        if self._members:
            self._empty_s, self._was_empty = 0.0, False
        elif not self._was_empty:
            self._was_empty = True  # it may have become so a moment ago
        else:
            self._empty_s += step_s
            self._due[""] = None
        return self._empty_s

    @property
    def writer(self) -> str:
        """Under which name the coordinator commits for the group, as its record says."""
        return self._writer

    @writer.setter
    def writer(self, name: str) -> None:
        if name != self._writer:
            self._writer = name
            self._due[""] = None

    @property
    def reported(self) -> Mapping[str, int]:
        """By topic, how many of its partitions may have a report of the group's lag, as its record says."""
        return self._reported

    @reported.setter
    def reported(self, sizes: Mapping[str, int]) -> None:
        if sizes != self._reported:
            self._reported = sizes
            self._due[""] = None

    # --- answers

    def answer(self, name: str, generation: int = 0) -> Answer:
        """What a member may read, that knows this generation. Raises KeyError if it is not there."""
        member = self._members[name]
        lease_ms = member.subscription.session_timeout_ms if member.prolonged else 0
        view = None if generation == self.generation else self._view
        reads = listed(member.granted.keys() - member.revoked.keys())
        missing = tuple(each for each in member.subscription.topics if not self._topics.get(each))
        return Answer(member.epoch, member.revision, self.generation, lease_ms, reads, view, missing)

    def told(self, name: str, answer: Answer, now_ms: int) -> None:
        """A member is sent this answer."""
        member = self._members.get(name)
        if member is not None and self.measures.told(name, member.granted, answer.revision, now_ms):
            self._due[""] = None

    def refusals(
        self, name: str, epoch: int, revision: int, partitions: Collection[Partition], sequence: int = 0
    ) -> dict[Partition, Refusal]:
        """Which of these partitions a member may not commit for, as it read them in this epoch and revision. The others
        are committed: a commit of a lower sequence is late from now on. 0: the member does not count its commits.

        It may until it has given the partition up. If it lost it and got it back, commits of the first time are late.
        """
        member = self._members.get(name)
        if member is None or member.epoch != epoch:
            over = Refusal(Why.UNKNOWN_MEMBER, "the session is over: who reads the partition now began before this")
            return dict.fromkeys(partitions, over)
        not_yours = Refusal(Why.NOT_YOURS, f"{name} does not hold the partition in revision {revision}")
        no_topic = Refusal(Why.NO_TOPIC, "the topic is gone: there is nothing to commit any more")
        refused = {
            each: not_yours if member.granted.get(each, revision + 1) > revision else no_topic
            for each in partitions
            if member.granted.get(each, revision + 1) > revision or each[0] not in self._topics
        }
        if sequence:
            late = Refusal(Why.LATE, f"commit {sequence} of {name} came after a later one: nothing is to be done")
            refused |= {each: late for each in partitions if member.commits.get(each, 0) > sequence}
            member.commits |= {each: sequence for each in partitions if each not in refused}
        return refused

    @property
    def members(self) -> Mapping[str, Subscription]:
        return {name: member.subscription for name, member in self._members.items()}

    def has(self, name: str) -> bool:
        """Returns True if that is a member."""
        return name in self._members

    @property
    def view(self) -> View | None:
        """What members divide the partitions by in this generation; None if the coordinator does, or not yet."""
        return self._view

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self._members

    @property
    def holders(self) -> Mapping[Partition, str]:
        """Who may be reading each partition."""
        return self._holders

    @property
    def targets(self) -> Mapping[Partition, str]:
        """Who should read each partition, without unassigned ones."""
        return self._targets.all()

    def target(self, partition: Partition) -> str | None:
        """Who should read a partition."""
        return self._targets.of(partition)

    @property
    def are_racks_wanted(self) -> bool:
        """Whether it may matter where partitions are led."""
        return self.settings.strategy in NEARBY or any(each.rack for each in self.members.values())

    def unread(self) -> int:
        """Number of partitions of the members' topics that are assigned to no member."""
        return sum(self._known_topics().values()) - len(self._targets.all())

    def wanted_topics(self) -> set[str]:
        """All topics with a subscriber, whether they exist or not."""
        return {topic for member in self._members.values() for topic in member.subscription.topics}

    def remaining_ms(self, now_ms: int) -> dict[str, int]:
        """What is left of each member's session, for the next owner."""
        return {name: member.ends_ms - now_ms for name, member in self._members.items()}

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do, if nothing comes in before."""
        return min((member.ends_ms for member in self._members.values()), default=None)

    def written(self, token: Token) -> list[Written]:
        """What has to be in the topic before any answer is sent, under the token of the group's bundle.

        In this order: every beginning of it makes sense, for who lost a partition comes before who got it.
        """
        found: list[Written] = []
        for name in self._due:
            if name:
                member = self._members.get(name)
                record = None if member is None else encoded(member.record(self._stored_weights()))
                found.append((key_of(self.name, token, name), record))
        if self._due:
            found.append((key_of(self.name, token), encoded(self.record())))
        self._due = {}
        return found

    def record(self) -> GroupRecord:
        """The group's own record."""
        topics, rebalances = self._known_topics(), self.measures.stored()
        return GroupRecord(
            self.settings,
            self.generation,
            topics,
            rebalances,
            writer=self._writer,
            empty_s=self._empty_s,
            reported=self._reported,
            creator=self.creator,
        )

    def _stored_weights(self) -> Mapping[Partition, float]:
        return (self._weighed or {}) if self.settings.strategy == WEIGHTED else {}

    def _known_topics(self) -> dict[str, int]:
        return {topic: self._topics[topic] for topic in self.wanted_topics() if topic in self._topics}

    def check_invariants(self) -> None:
        """Raise AssertionError if the group contradicts itself."""
        granted = {each: name for name, member in self._members.items() for each in member.granted}
        assert granted == self._holders, "holders are who was granted something"
        assert sum(len(member.granted) for member in self._members.values()) == len(granted), "one holder each"
        for name, member in self._members.items():
            assert member.revoked.keys() <= member.granted.keys(), f"{name} gives up what it has"
            assert (member.gives_up_by_ms is not None) == bool(member.revoked), f"{name} has a time for it"
            assert all(told <= member.revision for told in (*member.granted.values(), *member.revoked.values()))
        for partition, wanted in self._targets.all().items():
            is_held = partition in self._holders or partition in self._withheld or self.is_unsettled(partition)
            assert is_held or self.is_divided, f"{wanted} waits for {partition}"
        for partition, holder in self._holders.items():
            is_there = holder == self._targets.of(partition) or self._is_revoked(partition)
            assert is_there or self.is_divided, f"{holder} keeps {partition} of {self._targets.of(partition)}"
        assert self._view is None or not self._events, "members claim by a division that is to be replaced"

    # --- steps

    def _take(self, name: str, beat: Beat, now_ms: int) -> None:
        """What a heartbeat says that is newer than the one before."""
        member = self._members[name]
        member.sequence, member.seen_ms = beat.sequence, now_ms
        freed = [each for each, told in member.revoked.items() if told <= beat.acked]
        for partition in freed:
            del member.revoked[partition], member.granted[partition], self._holders[partition]
            self._stopped(partition, now_ms)
        if freed:
            self._due[name] = None
        if not member.revoked:
            member.gives_up_by_ms = None
        is_news = member.subscribe(beat.subscription)  # before its session is prolonged: the answer promises that one
        member.prolonged = member.gives_up_by_ms is None or now_ms < member.gives_up_by_ms
        if member.prolonged:
            member.ends_ms = member.session_from(now_ms)
        if is_news:
            self._due[name] = None
            self._retarget(f"{named([name])} subscribes to something else", now_ms)
        if self._view is not None and beat.claims is not None and beat.generation == self.generation:
            claim = Claim(self.generation, frozenset(beat.claims))
            if claim != member.claim:
                member.claim = claim
                self._due[name] = None
                asked = self._claims.put(name, self._valid(name, claim))
                readers = {each: self._claims.reader(each, self._targets.of(each)) for each in asked}
                changed = self._targets.move(readers)
                if changed:
                    rebalance = self._begin(f"{named([name])} claims", now_ms)
                    self._carry_out(rebalance, changed, now_ms)
                    self.measures.complete(rebalance, now_ms)
        self._place(freed, now_ms)

    def _drop(self, names: Iterable[str], why: str, now_ms: int) -> None:
        freed: list[Partition] = []
        for name in names:
            gone = self._members.pop(name)
            freed += gone.granted
            self._due[name] = None
            self.measures.gone(name)
            for partition in gone.granted:
                del self._holders[partition]
                self._stopped(partition, gone.seen_ms)
        self._retarget(why, now_ms)
        self._place(freed, now_ms)

    def _stopped(self, partition: Partition, at_ms: int) -> None:
        if self._targets.of(partition) is not None:
            self.measures.stopped(partition, at_ms)

    def _situation(self) -> Situation:
        return Situation(self.members, self._known_topics(), self._weighed, self._racks, self.settings.config)

    def _retarget(self, why: str, now_ms: int, *, always: bool = True, weigh: bool = False) -> None:
        """Something changed by which it is decided who should read what. Only if `weigh` the newest weights count: by
        those of the last time a member that comes or goes costs little, and moves little."""
        self._events.append(Event(why, always, weigh))
        self._view = None
        if not self._divide(now_ms):
            self.generation += 1
            self._due[""] = None

    def _divide(self, now_ms: int) -> bool:
        """At once, if the group is small. Returns whether it was."""
        size = len(self._members) + max(len(self._targets.all()), sum(self._known_topics().values()))
        plan = self.plan() if size <= self.large else None
        if plan is None:
            return False
        self.take(plan(), now_ms)
        while self.place(size, now_ms):
            pass
        return True

    @property
    def is_divided(self) -> bool:
        """Whether a division is to be computed, or to be carried out."""
        return bool(self._events or self._is_planned or self._to_place or self._to_write)

    def plan(self) -> Callable[[], Division] | None:
        """What computes a division, on any thread, which must be taken then; None if nothing has changed, or if the
        last one is not taken and placed."""
        if not self._events or self._is_planned or self._to_place:
            return None
        events, self._is_planned = tuple(self._events), True
        weigh = self._weighed is None or any(each.weigh for each in events)
        situation = msgspec.structs.replace(self._situation(), weights=self._weights if weigh else self._weighed)
        settings, before, targets = self.settings, self._targets, self._targets.fork()
        valid = {each: self._valid(each, its.claim) for each, its in self._members.items() if its.claim}
        holders = dict(self._holders) if all(each.if_uneven for each in events) else None

        def plan() -> Division:
            try:
                return divide()
            except BaseException:
                self._is_planned = False
                raise

        def divide() -> Division:
            view, claims, changed = None, None, set[Partition]()
            if holders is not None and not _is_to_be_divided(situation, holders, before):
                pass
            elif settings.mode is Mode.CLIENT:
                view = view_of(settings.strategy, situation, targets.all())
                claims = Claims(divided(view), valid)
                changed = targets.replace({each: claims.reader(each, targets.of(each)) for each in claims.proposal})
            else:
                changed = targets.renew(situation)
            in_order = sorted(changed, key=lambda each: (before.of(each) or targets.of(each) or "", each))
            return Division(events, settings, situation.weights, targets, in_order, view, claims)

        return plan

    def take(self, division: Division, now_ms: int) -> None:
        """Divide the group so, from now on; it is to be placed. If the settings have changed meanwhile it does not
        count. What else has changed is for the next one."""
        self._is_planned = False
        if division.settings is not self.settings:
            return
        del self._events[: len(division.events)]
        self._targets = division.targets
        if not division.changed and all(each.if_uneven for each in division.events):
            return
        self.generation += 1
        self._due[""] = None
        if self._weighed is not division.weights:
            self._weighed = division.weights
            self._to_write.update(dict.fromkeys(self._members if self.settings.strategy == WEIGHTED else ()))
        self._view = None if self._events else division.view
        self._claims = division.claims or self._claims
        always = any(each.always for each in division.events)
        if always or any(self._targets.of(each) is not None for each in division.changed):
            why, more = division.events[0].why, len(division.events) - 1
            self._rebalance = self._begin(f"{why}, and {more} more" if more else why, now_ms)
        self._to_place = [*division.changed, *self._skipped.difference(division.changed)]
        self._skipped = set()
        self._to_place.reverse()

    def place(self, limit: int, now_ms: int) -> bool:
        """Have so many partitions go where the division says, or so many records written for it. Returns whether
        something is left."""
        part = self._to_place[-limit:]
        del self._to_place[-limit:]
        self._carry_out(self._rebalance, part[::-1], now_ms)
        if self._rebalance is not None and not self._to_place:
            self.measures.complete(self._rebalance, now_ms)
            self._rebalance = None
        left = limit - len(part)
        while left > 0 and self._to_write:
            name = next(iter(self._to_write))
            del self._to_write[name]
            if name in self._members:
                self._due[name] = None
                left -= 1 + len(self._members[name].granted)
        return bool(self._to_place or self._to_write)

    def _begin(self, why: str, now_ms: int) -> int:
        return self.measures.begin(self.generation, why, len(self._members), len(self._targets.all()), now_ms)

    def _carry_out(self, rebalance: int | None, partitions: Collection[Partition], now_ms: int) -> None:
        """Apply new targets of these partitions (another member, or none), and measure them in the rebalance."""
        for partition in partitions:
            wanted, holder = self._targets.of(partition), self._holders.get(partition)
            if wanted is None:
                self.measures.abandoned(partition, now_ms)
            elif rebalance is not None:
                is_there = holder == wanted and not self._is_revoked(partition)
                self.measures.include(rebalance, partition, now_ms, holder=holder, is_there=is_there)
        self._place(partitions, now_ms)

    def _counts(self) -> list[int]:
        return [len(member.granted) for member in self._members.values()]

    def _valid(self, name: str, claim: Claim) -> Claim:
        """Without what the member does not subscribe to."""
        topics = self._members[name].subscription.topics
        return Claim(claim.generation, frozenset(each for each in claim.partitions if each[0] in topics))

    def _is_revoked(self, partition: Partition) -> bool:
        return partition in self._members[self._holders[partition]].revoked

    def _wanted(self, partition: Partition) -> str | None:
        """The member that should read it, and can."""
        name = self._targets.of(partition)
        if name is None or partition in self._withheld:
            return None
        if self._events or self._is_planned:  # the members may be others by now
            member = self._members.get(name)
            if member is None or partition[0] not in member.subscription.topics:
                if partition not in self._holders:
                    self._skipped.add(partition)
                return None
        return name

    def _place(self, partitions: Collection[Partition], now_ms: int) -> None:
        """Grant free partitions to their targets, and revoke those that another member holds."""
        told: set[str] = set()
        for partition in partitions:
            holder = self._holders.get(partition)
            wanted = self._wanted(partition)
            if holder is None and wanted is not None and not self.is_unsettled(partition):
                self._holders[partition] = wanted
                self._members[wanted].granted[partition] = self._next_revision(wanted, told)
                self.measures.granted(partition, wanted)
            elif holder is not None and holder != wanted and not self._is_revoked(partition):
                self._members[holder].revoked[partition] = self._next_revision(holder, told)
                self.measures.revoked(partition, holder)
        for name in told:
            member = self._members[name]
            if member.revoked and member.gives_up_by_ms is None:
                member.gives_up_by_ms = now_ms + member.subscription.revoke_timeout_ms

    def _next_revision(self, name: str, told: set[str]) -> int:
        """One for all that changes at once."""
        if name not in told:
            told.add(name)
            self._due[name] = None
            self._to_write.pop(name, None)
            self._members[name].revision += 1
        return self._members[name].revision


def _is_to_be_divided(situation: Situation, holders: Mapping[Partition, str], targets: Targets) -> bool:
    """Whether nothing moves, and one member has too much to read."""
    moves = any(targets.of(each) != holder for each, holder in holders.items())
    return not moves and is_uneven(situation.weights or {}, holders, situation.members)
