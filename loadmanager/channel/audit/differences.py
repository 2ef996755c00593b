"""Finds where our own replay differs from a replica's endpoint or a snapshot. Pure."""

from __future__ import annotations

from loadmanager.channel.audit.digests import (
    NamespaceDigests,
    PartitionDigests,
    namespace_digests,
    partition_digests,
    shown,
)
from statechannel.law.partition import NamespaceState, PartitionState


def differing_part(ours: PartitionState, theirs: PartitionDigests, after: str) -> tuple[str | None, str | None]:
    """What differs in this page: a namespace's name, else the name of a part that belongs to no namespace."""
    page = partition_digests(ours, after, most=len(theirs.namespaces) + 1)
    mine = {n.namespace: n.digest for n in page.namespaces}
    said = {n.namespace: n.digest for n in theirs.namespaces}
    if theirs.next is not None:  # later names are on later pages
        mine = {name: digest for name, digest in mine.items() if name <= theirs.next}
    for name in sorted({*mine, *said}):
        if mine.get(name) != said.get(name):
            return name, None
    rest = next((part for part, digest in page.rest.items() if theirs.rest.get(part) != digest), None)
    return None, rest


def differing_bundle(ours: PartitionState, theirs: NamespaceDigests, after: str) -> str | None:
    """Which bundle of this page differs and how, None if none does."""
    mine = namespace_digests(ours, theirs.namespace, after, most=len(theirs.bundles) + 1)
    log_says = {bundle.bundle: bundle for bundle in mine.bundles}
    they_say = {bundle.bundle: bundle for bundle in theirs.bundles}
    if theirs.next is not None and theirs.bundles:
        last = theirs.bundles[-1].bundle
        log_says = {name: bundle for name, bundle in log_says.items() if name <= last}
    for name in sorted({*log_says, *they_say}):
        one, other = log_says.get(name), they_say.get(name)
        if one is None or other is None or one.digest != other.digest:
            return told(name, one.shown if one is not None else None, other.shown if other is not None else None)
    if theirs.next is None and mine.revision != theirs.revision:
        return f"{theirs.namespace}: the log says revision {mine.revision}, it says {theirs.revision}"
    return None


def told(name: str, log_says: str | None, they_say: str | None) -> str:
    """A difference in words."""
    if log_says == they_say:
        return f"{name}: the same but for what it hands over or how it is to be cut"
    return f"{name}: the log says {log_says or 'there is none'}; it says {they_say or 'there is none'}"


def difference(ours: PartitionState, theirs: PartitionState) -> str | None:
    """The first difference between two whole states of a partition, in words."""
    mine, said = ({n.name: n for n in state.namespaces} for state in (ours, theirs))
    for name in sorted({*mine, *said}):
        found = _of_namespace(name, mine.get(name), said.get(name))
        if found is not None:
            return found
    for part in ("cluster_identity", "lead", "retired", "agreed", "incarnations", "leaving", "arrived"):
        one, other = getattr(ours, part), getattr(theirs, part)
        if part == "leaving":  # its order means nothing, and differs in older snapshots
            one, other = sorted(one), sorted(other)
        if one != other:
            return f"{part}: the log says {_short(one)}; it says {_short(other)}"
    return None


def _of_namespace(name: str, ours: NamespaceState | None, theirs: NamespaceState | None) -> str | None:
    if ours is None or theirs is None:
        return f"namespace {name} is only in {'the log' if theirs is None else 'the snapshot'}"
    mine, said = ({str(e.bundle): e for e in state.entries} for state in (ours, theirs))
    for bundle in sorted({*mine, *said}):
        one, other = mine.get(bundle), said.get(bundle)
        if one != other:
            return told(bundle, shown(one) if one is not None else None, shown(other) if other is not None else None)
    if ours.revision != theirs.revision:
        return f"{name}: the log says revision {ours.revision}; it says {theirs.revision}"
    return None


def _short(value: object, most: int = 120) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}…"
