"""Digests of a partition and of each of its parts, to find out where two replicas differ.

Pure. All are computed from one immutable copy, so they are consistent however long that takes.
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
