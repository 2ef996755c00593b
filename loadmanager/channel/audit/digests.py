"""Digests of a partition and of each of its parts, and where two states of it differ. Pure.

All digests are computed from one immutable copy, so they are consistent however long that takes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice

import msgspec

from statechannel.law.partition import NamespaceState, PartitionState
from statechannel.law.verdict import Ownership

NAMESPACES_AT_MOST = 5_000
BUNDLES_AT_MOST = 5_000
ENTRIES_AT_ONCE = 500
"""Few, since no other thread runs while an encoder works."""


class NamespaceDigest(msgspec.Struct, frozen=True):
    """The digest of one namespace: its revision and all its bundles."""

    namespace: str
    digest: str
    bundles: int


class PartitionDigests(msgspec.Struct, frozen=True):
    """A page of namespaces, ordered by name; `next` is the `cursor` of the next page, which is at another offset.

    `rest` has the digest of each part that belongs to no namespace, by its name.
    """

    partition: int
    next_offset: int
    rest: dict[str, str]
    namespaces: list[NamespaceDigest]
    next: str | None


class BundleDigest(msgspec.Struct, frozen=True):
    """A bundle, the digest of its whole entry, and the entry in words."""

    bundle: str
    digest: str
    shown: str


class NamespaceDigests(msgspec.Struct, frozen=True):
    """A page of a namespace's bundles; `revision` is None if there is no such namespace."""

    partition: int
    next_offset: int
    namespace: str
    revision: int | None
    bundles: list[BundleDigest]
    next: str | None


def partition_digests(state: PartitionState, after: str, most: int) -> PartitionDigests:
    """The page of the namespaces after `after`. May take long: run it on a thread."""
    names = [namespace.name for namespace in state.namespaces]
    begin = bisect_right(names, after) if after else 0
    found = [_namespace(namespace) for namespace in islice(state.namespaces, begin, begin + most)]
    more = begin + most < len(names)
    following = found[-1].namespace if more and found else None
    return PartitionDigests(state.partition, state.next_offset, _rest(state), found, following)


def namespace_digests(state: PartitionState, name: str, after: str, most: int) -> NamespaceDigests:
    """The page of the namespace's bundles after the range `after`. May take long: run it on a thread."""
    namespace = next((n for n in state.namespaces if n.name == name), None)
    entries: Sequence[Ownership] = namespace.entries if namespace is not None else ()
    begin = bisect_right(entries, after, key=lambda entry: entry.bundle.range) if after else 0
    found = [BundleDigest(str(entry.bundle), _digest(entry), shown(entry)) for entry in entries[begin : begin + most]]
    following = entries[begin + most - 1].bundle.range if begin + most < len(entries) else None
    revision = namespace.revision if namespace is not None else None
    return NamespaceDigests(state.partition, state.next_offset, name, revision, found, following)


def shown(entry: Ownership) -> str:
    """A bundle's entry in words."""
    parts = [entry.state.value]
    if entry.holder is not None:
        parts.append(f"at {entry.holder}")
    if entry.target is not None:
        parts.append(f"to {entry.target}")
    parts.append(f"revision {entry.revision}, token {entry.token}, by {entry.action} of {entry.by}")
    return " ".join(parts)


def _namespace(namespace: NamespaceState) -> NamespaceDigest:
    digest, encode = blake2b(digest_size=8), msgspec.msgpack.Encoder().encode
    digest.update(encode(namespace.revision))
    for begin in range(0, len(namespace.entries), ENTRIES_AT_ONCE):
        digest.update(encode(namespace.entries[begin : begin + ENTRIES_AT_ONCE]))
    return NamespaceDigest(namespace.name, digest.hexdigest(), len(namespace.entries))


def _rest(state: PartitionState) -> dict[str, str]:
    return {
        "genesis": _digest(state.cluster_identity),
        "lead": _digest(state.lead),
        "retired": _digest(state.retired),
        "agreement": _digest(state.agreed),
        "incarnations": _digest(state.incarnations),
        "moves": _digest((sorted(state.leaving), state.arrived)),
    }


def _digest(value: object) -> str:
    return blake2b(msgspec.msgpack.encode(value), digest_size=8).hexdigest()


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
