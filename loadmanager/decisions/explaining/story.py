"""Tells how a bundle came to its place: the channel's records about it, in sentences. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from loadmanager.channel.bundle_history import Entry
from loadmanager.decisions.explaining.answer import Event, listed
from statechannel.law.record import Action, Role

EVENTS_TOLD = 5

_TOLD = frozenset(Action) - {
    Action.RETURN, Action.READY, Action.NOOP, Action.LEAD, Action.GENESIS, Action.RETIRE, Action.AMEND, Action.AGREE,
}  # fmt: skip
_DECISION = re.compile(r"\d{1,18}\.\d{1,18}", re.ASCII)


def story(entries: Iterable[Entry]) -> tuple[Event, ...]:
    """Its last events, newest first, from its history, newest first."""
    # `return` and `ready` only complete a step that others asked for
    told = [each for each in entries if each.accepted and each.action in _TOLD]
    return tuple(_event(each) for each in told[:EVENTS_TOLD])


def decision_behind(cause: str) -> str:
    """The id of the decision in a record's cause, empty if it has none."""
    return cause if _DECISION.fullmatch(cause) else ""


def _event(entry: Entry) -> Event:
    return Event(entry.appended_ms, _text(entry), decision_behind(entry.cause), entry.reason)


def _text(entry: Entry) -> str:
    by, to, owner = _author(entry), _name(entry.target or entry.to or ""), _name(entry.owner or "")
    match entry.action:
        case Action.OWN:
            return f"assigned to {owner or to} by {by}"
        case Action.TRANSFER:
            return f"transfer from {owner or 'its owner'} to {to} begun by {by}"
        case Action.UNLOAD:
            return f"unloaded from {owner or 'its owner'} by {by}"
        case Action.RELEASE:
            return f"released by {by}" + (f", now at {owner}" if owner else f" to {to}" if to else "")
        case Action.REVOKE:
            return f"revoked from {owner or 'its owner'} by {by}"
        case Action.CANCEL:
            return f"{entry.before.value if entry.before else 'what was under way'} called off by {by}"
        case Action.CREATE | Action.MERGE if entry.parents:
            return f"made from {listed([each.range for each in entry.parents])} by {by}"
        case Action.CREATE | Action.MERGE:
            return f"became {listed([each.range for each in entry.children])} by {by}"
        case Action.CREATE_NAMESPACE:
            return f"made with its namespace by {by}"
        case Action.DELETE_NAMESPACE:
            return f"deleted with its namespace by {by}"
        case _:
            return f"{entry.action.value} by {by}"


def _author(entry: Entry) -> str:
    match entry.role:
        case Role.LEADER:
            return f"the leader {_name(entry.actor)} (term {entry.epoch})"
        case Role.ADMIN:
            return f"an administrator at {_name(entry.actor)}"
        case Role.BROKER:
            return _name(entry.actor)


def _name(actor: str) -> str:
    return actor.rpartition("#")[0] or actor
