"""Which brokers cannot acquire bundles, judged from the channel's records. Pure: the same records give the same result.

A broker whose hooks fail has no bundles. So it would be the least loaded, and the first choice for every bundle. A
broker is *unfit* after `SEVERAL` different bundles in a row that it could not acquire or prepare for, and with which no
other broker failed: a bundle that fails at two brokers says nothing about either. An unfit broker keeps what it has. It
gets no bundles but one for a trial, after a back-off that doubles. A bundle that it acquires makes it fit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from loadmanager.model.registration import Peer
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Change

DECLINED = "the host declined"
"""The reason of a record with which a broker gives back a bundle that its service could not acquire."""
UNPREPARED = "the target could not prepare"
"""The reason of a `cancel` by the target of a transfer whose service could not prepare."""
STUCK_ACQUIRING = f"stuck in {State.ASSIGNING}"
"""Begins the reason of the leader's `revoke` of a bundle whose owner did not acquire it in time."""

SEVERAL = 3
FIRST_REST_S, LAST_REST_S = 5.0, 300.0
TRIAL_S = 60.0
"""After this time without an outcome of a trial, another one may begin."""
BUNDLES_KEPT = 10_000
BROKERS_KEPT = 1_000


class Failing(msgspec.Struct):
    """A broker that failed with these bundles since it last acquired one; once unfit it is closed until `closed_s`.

    It has rested `rests` times. `on_trial`: this broker gave it a bundle that has no outcome yet.
    """

    bundles: dict[Bundle, str]
    closed_s: float = 0.0
    rests: int = 0
    on_trial: bool = False

    @property
    def is_unfit(self) -> bool:
        return len(self.bundles) >= SEVERAL


class Fitness:
    """Feed it every accepted change in order. `clock_s` gives the monotonic time in seconds."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._failing: OrderedDict[BrokerId, Failing] = OrderedDict()
        self._failed_at: OrderedDict[Bundle, set[BrokerId]] = OrderedDict()
        """The brokers that failed with a bundle since one last acquired it."""
        self._closed: tuple[float, frozenset[BrokerId]] = float("inf"), frozenset()
        """The brokers that get no bundles, and until when that holds."""

    # --- feeding

    def observe(self, change: Change) -> None:
        """Take the next accepted record."""
        record = change.record
        if record.role is Role.BROKER:
            if record.action is Action.RETURN and (self._failing or self._failed_at):
                self._acquired(record.actor, change)
            elif record.reason in (DECLINED, UNPREPARED):
                for transition in change.transitions:
                    self._fail(record.actor, transition.bundle, record.reason)
        elif record.action is Action.REVOKE and record.reason.startswith(STUCK_ACQUIRING):
            for transition in change.transitions:
                if transition.before is not None and transition.before.holder is not None:
                    self._fail(transition.before.holder, transition.bundle, record.reason)

    def _acquired(self, broker: BrokerId, change: Change) -> None:
        for transition in change.transitions:
            self._failed_at.pop(transition.bundle, None)
        if self._failing.pop(broker, None) is not None:
            self._changed()

    def _fail(self, broker: BrokerId, bundle: Bundle, reason: str) -> None:
        at = self._failed_at.setdefault(bundle, set())
        if len(at) < 2:
            at.add(broker)
        if len(self._failed_at) > BUNDLES_KEPT:
            self._failed_at.popitem(last=False)
        failing = self._failing.setdefault(broker, Failing({}))
        if len(self._failing) > BROKERS_KEPT:
            self._failing.popitem(last=False)
        if len(at) > 1:  # it may be the bundle
            for each in at & self._failing.keys():
                self._failing[each].bundles.pop(bundle, None)
        else:
            failing.bundles.pop(bundle, None)
            failing.bundles[bundle] = reason
            while len(failing.bundles) > SEVERAL:
                del failing.bundles[next(iter(failing.bundles))]
        now_s = self._clock_s()
        if failing.is_unfit and (failing.on_trial or failing.closed_s <= now_s):  # else it was given before it closed
            failing.closed_s = now_s + min(FIRST_REST_S * 2**failing.rests, LAST_REST_S)
            failing.rests = min(failing.rests + 1, 10)
        failing.on_trial = False
        self._changed()

    def _changed(self) -> None:
        self._closed = float("-inf"), self._closed[1]

    # --- asking

    def closed(self) -> frozenset[BrokerId]:
        """The unfit brokers but one that is due for a trial; the same object until that changes."""
        until_s, closed = self._closed
        if until_s <= (now_s := self._clock_s()):
            unfit = {broker: each.closed_s for broker, each in self._failing.items() if each.is_unfit}
            due = next((broker for broker, closed_s in unfit.items() if closed_s <= now_s), None)
            until_s = min((closed_s for closed_s in unfit.values() if closed_s > now_s), default=float("inf"))
            found = frozenset(unfit) - {due}
            closed = closed if found == closed else found
            self._closed = until_s, closed
        return closed

    def open_of(self, peers: Sequence[Peer]) -> Sequence[Peer]:
        """Those of the brokers that may get bundles now; if all are unfit, none is treated so."""
        closed = self.closed()
        open_to = [peer for peer in peers if peer.broker not in closed]
        return open_to if any(not self.is_unfit(peer.broker) for peer in open_to) else peers

    def is_unfit(self, broker: BrokerId) -> bool:
        """Returns True if the broker gets no bundles but for a trial."""
        failing = self._failing.get(broker)
        return failing is not None and failing.is_unfit

    def begins_trial(self, broker: BrokerId) -> bool:
        """Returns True if a bundle that goes to this broker now is its trial: no other one may go there meanwhile."""
        failing = self._failing.get(broker)
        if failing is None or not failing.is_unfit or broker in self.closed():
            return False
        failing.closed_s, failing.on_trial = self._clock_s() + TRIAL_S, True
        self._changed()
        return True

    def why(self, broker: BrokerId) -> str:
        """Why a broker is unfit, and when it gets a bundle again; empty if it is fit."""
        failing = self._failing.get(broker)
        if failing is None or not failing.is_unfit:
            return ""
        bundle, reason = next(reversed(failing.bundles.items()))
        rest_s = max(0.0, failing.closed_s - self._clock_s())
        return (
            f"it could not acquire {SEVERAL} bundles in a row or more, the last one {bundle}: {reason}; it "
            f"gets one for a trial in {rest_s:.0f} s; to try now: loadmanager topics unload TOPIC --dest {broker.name}"
        )

    def unfit(self) -> dict[BrokerId, str]:
        """The unfit brokers, and why."""
        return {broker: self.why(broker) for broker, each in self._failing.items() if each.is_unfit}
