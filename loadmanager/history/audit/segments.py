"""Where a log is cut into segments, so that one partition is audited in parallel. Pure.

A claim is a stated state at an offset: a snapshot, or a state that the ingest kept. A segment begins with one claim and
ends at the next chosen one, which must equal the segment's own replay. If all agree, the whole log is proven by
induction, as with one pass. Before the first claim the log must be there from offset 0; records before the first claim
of a trimmed log cannot be judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec


class Claim(msgspec.Struct, frozen=True, order=True):
    """A statement by `who` of a partition's state at an offset; `problem`: why it cannot be used."""

    partition: int
    next_offset: int
    who: str
    problem: str = ""


class Extent(msgspec.Struct, frozen=True):
    """Records of a partition without a known hole: the first offset, and the one behind the last."""

    begin: int
    end: int


class Segment(msgspec.Struct, frozen=True):
    """Records of `[begin, end)`; `base` is whose claim it begins with, None at the log's beginning.

    Records that cannot be judged are a segment too; it is only counted.
    """

    number: int
    partition: int
    begin: int
    end: int
    base: str | None
    judged: bool = True


def plan(claims: Iterable[Claim], extents: Mapping[int, Sequence[Extent]], apart: int) -> list[Segment]:
    """The segments of all partitions, cut at claims that are at least `apart` offsets from each other."""
    usable = sorted(claim for claim in claims if not claim.problem)
    segments: list[Segment] = []
    for partition, of_partition in sorted(extents.items()):
        of_this = [claim for claim in usable if claim.partition == partition]
        for extent in of_partition:
            segments += _of_extent(len(segments), partition, extent, of_this, apart)
    return segments


def without(extent: Extent, holes: Iterable[Extent]) -> list[Extent]:
    """What is left of an extent between holes, in order."""
    parts: list[Extent] = []
    begin = extent.begin
    for hole in sorted(holes, key=lambda each: each.begin):
        if extent.begin <= hole.begin < hole.end <= extent.end:
            parts.append(Extent(begin, hole.begin))
            begin = max(begin, hole.end)
    parts.append(Extent(begin, extent.end))
    return [part for part in parts if part.begin < part.end]


def _of_extent(first: int, partition: int, extent: Extent, claims: Sequence[Claim], apart: int) -> list[Segment]:
    within = [claim for claim in claims if extent.begin <= claim.next_offset <= extent.end]
    begin, base = extent.begin, None
    segments: list[Segment] = []
    if extent.begin > 0:
        begin, base = (within[0].next_offset, within[0].who) if within else (extent.end, None)
        if begin > extent.begin:
            segments.append(Segment(first, partition, extent.begin, begin, None, judged=False))
    for claim in within:
        if claim.next_offset - begin >= apart and extent.end - claim.next_offset >= apart:
            segments.append(Segment(first + len(segments), partition, begin, claim.next_offset, base))
            begin, base = claim.next_offset, claim.who
    if begin < extent.end:
        segments.append(Segment(first + len(segments), partition, begin, extent.end, base))
    return segments


def place(claim: Claim, segments: Sequence[Segment]) -> Segment | None:
    """The segment whose replay a claim is compared with; None where its partition has none."""
    judged = [segment for segment in segments if segment.partition == claim.partition and segment.judged]
    ending = next((s for s in judged if s.begin < claim.next_offset <= s.end), None)
    if ending is not None or not judged:
        return ending
    return next((s for s in judged if s.begin == claim.next_offset and s.base != claim.who), None)
