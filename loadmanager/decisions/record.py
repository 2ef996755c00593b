"""The record of one round of the leader: all its input, its decision, and the outcomes. Values only.

`codec.py` encodes it for the log. `id` is `epoch.round`, which the channel's records of the round's moves have as
`cause`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.settings.catalogue import Access
from loadmanager.strategies.rebalancing.decision import Decision
from statechannel.law.record import BrokerId

_ID = re.compile(r"(\d{1,18})\.(\d{1,18})", re.ASCII)

_NO_GROUNDS = frozenset(
    {
        *("cluster", "advertised", "log", "coordination", "partitions", "topic_prefix", "replication"),
        *("min_insync_replicas", "development", "kafka", "zookeeper", "insecure", "start_timeout_s"),
        *("failure_domain", "capacity", "properties"),
        *Access.model_fields,
    }
)
"""Settings of a broker's place and access, secrets among them: no decision depends on them."""


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """A strategy's memory of its last round, as bytes; `type` is its class, empty for plain values.

    `lost` says why it is missing: then the decision cannot be reproduced from the record.
    """

    data: bytes = b""
    type: str = ""
    lost: str = ""


NOTHING_KEPT = Memory()


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a move: `begun`, or why not (`refused`, `skipped`, `waiting` for review …); `detail` in words."""

    outcome: str
    detail: str = ""


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One round. `at_ms` is the leader's wall clock; `outcomes` are in the order of `decision.moves`.

    They may be fewer if a round was cut off. `settings` are those that a decision may depend on, with their values
    (defaults change with releases). `memory` is what the strategy was *given*. `model` is None if the round had none
    (paused, nothing known), or if the record would have been too large; `without_model` says which.
    """

    id: str
    at_ms: int
    leader: BrokerId
    strategy: str
    settings: Mapping[str, Any]
    decision: Decision
    policies_revision: int = -1
    model: ClusterModel | None = None
    digest: str = ""
    """The digest of the model, even if that is not kept."""
    without_model: str = ""
    memory: Memory = NOTHING_KEPT
    outcomes: tuple[Outcome, ...] = ()

    @property
    def epoch(self) -> int:
        """The epoch of the leader's term."""
        return ordinal(self.id)[0]

    @property
    def round(self) -> int:
        """The number of the round within the term, from 1."""
        return ordinal(self.id)[1]

    def restored_settings(self) -> Settings:
        """The recorded settings, with present defaults for settings that did not exist then. Reads no environment.

        Settings that this release no longer has are left out.
        """
        known = {name: value for name, value in self.settings.items() if name in Settings.model_fields}
        return Settings.model_construct(None, **known)


class Summary(msgspec.Struct, frozen=True):
    """A line for a list of decisions."""

    id: str
    at_ms: int
    leader: str
    strategy: str
    reason: str
    moves: int
    begun: int
    spread_before: float
    spread_after: float
    has_model: bool
    offset: int


def ordinal(decision_id: str) -> tuple[int, int]:
    """Epoch and round, the order of decisions. Raises ValueError."""
    match = _ID.fullmatch(decision_id)
    if match is None:
        shown = decision_id if len(decision_id) <= 60 else f"{decision_id[:60]}…"
        raise ValueError(f"{shown!r} is not the id of a decision; write epoch.round, such as 3.17")
    return int(match[1]), int(match[2])


def id_of(epoch: int, number: int) -> str:
    """The id of a decision, and the `cause` of its moves."""
    return f"{epoch}.{number}"


def grounds(settings: Settings) -> Mapping[str, Any]:
    """The settings that a decision may depend on, for a record."""
    return settings.model_dump(mode="json", exclude=set(_NO_GROUNDS))


def record_of(
    decision_id: str,
    leader: BrokerId,
    at_ms: int,
    decision: Decision,
    *,
    strategy: str,
    settings: Settings,
    model: ClusterModel | None = None,
    memory: Memory = NOTHING_KEPT,
    policies_revision: int = -1,
    outcomes: Iterable[Outcome] = (),
    without_model: str = "",
) -> DecisionRecord:
    """The record of a round. `memory` is what the strategy was given. Raises ValueError for an invalid id."""
    ordinal(decision_id)
    return DecisionRecord(
        id=decision_id,
        at_ms=at_ms,
        leader=leader,
        strategy=strategy,
        settings=grounds(settings),
        decision=msgspec.structs.replace(decision, memory=None),
        policies_revision=policies_revision,
        model=model,
        digest=model.digest if model is not None else "",
        without_model=without_model if model is None else "",
        memory=memory,
        outcomes=tuple(outcomes),
    )


def summary_of(record: DecisionRecord, offset: int) -> Summary:
    """A record in one line."""
    decision = record.decision
    return Summary(
        id=record.id,
        at_ms=record.at_ms,
        leader=record.leader.name,
        strategy=record.strategy,
        reason=decision.reason,
        moves=len(decision.moves),
        begun=sum(outcome.outcome == BEGUN for outcome in record.outcomes),
        spread_before=decision.spread_before,
        spread_after=decision.spread_after,
        has_model=record.model is not None,
        offset=offset,
    )


BEGUN = "begun"
"""The outcome of a move whose transfer the channel accepted."""
