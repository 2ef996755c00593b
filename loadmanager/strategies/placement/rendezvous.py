"""The rank of each broker for each bundle, and placement by it alone: pseudo-random, the same for every caller. Pure.

Rendezvous hashing: the lowest rank wins, so that a broker that comes or goes affects only its own bundles. 32 bits,
mixed as in MurmurHash3's finalizer, in a form that numpy computes for many bundles and brokers together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from loadmanager.strategies.placement.placement import Candidate, Given, NoPlace, Placed, willing
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

RANKS = 1 << 32
_ALL = RANKS - 1
_FIRST, _SECOND = 0x85EBCA6B, 0xC2B2AE35
_NAMES_KEPT = 65_536


def rendezvous(bundle: Bundle, broker: BrokerId) -> int:
    """The rank of a broker for a bundle, below RANKS. Depends on the broker's name, not on its incarnation."""
    rank = _of_bundle(bundle) ^ _of_broker(broker.name)
    rank = (rank ^ rank >> 16) * _FIRST & _ALL
    rank = (rank ^ rank >> 13) * _SECOND & _ALL
    return rank ^ rank >> 16


def seeds(brokers: Sequence[BrokerId]) -> NDArray[np.uint32]:
    """(n,), the input of `ranks`."""
    return np.array([_of_broker(each.name) for each in brokers], np.uint32)


def ranks(bundles: Sequence[Bundle], brokers: NDArray[np.uint32]) -> NDArray[np.float64]:
    """(m, n), `rendezvous` of each pair; `brokers` are their `seeds`."""
    rank = np.array([_of_bundle(each) for each in bundles], np.uint32)[:, np.newaxis] ^ brokers
    rank ^= rank >> np.uint32(16)
    rank *= np.uint32(_FIRST)
    rank ^= rank >> np.uint32(13)
    rank *= np.uint32(_SECOND)
    rank ^= rank >> np.uint32(16)
    return rank.astype(np.float64)


def _of_bundle(bundle: Bundle) -> int:
    return crc32(str(bundle).encode())


@lru_cache(_NAMES_KEPT)
def _of_broker(name: str) -> int:
    """Another hash than the bundle's, so that names of the same pattern don't cancel each other out."""
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big")


class Rendezvous:
    """Placement by rank: every caller gets the same answer, whatever it knows of load.

    For services whose bundles cost about the same, or that want to find what they cached before. The former owner has
    no advantage: if it had the lowest rank, it gets the bundle again.
    """

    name = "rendezvous"

    def choose(self, bundle: Bundle, candidates: Sequence[Candidate], given: Given) -> Placed | NoPlace:
        """The broker for this bundle; a broker that declined it only if there is no other."""
        found = willing(candidates, given)
        if isinstance(found, NoPlace):
            return found
        chosen_from, refused = found
        chosen = min(chosen_from, key=lambda each: (rendezvous(bundle, each.broker), each.broker)).broker
        return Placed(chosen, f"{chosen.name} has the lowest rank of {len(chosen_from)} brokers", refused)
