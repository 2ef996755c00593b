"""Advice made of the load history: what the leader might change, by how much that should help, and how sure that is.

`advise(lake, window, options)` answers a list of `loadmanager.leader.plans.advice.Advice`; `consider` says besides why
there is none of a kind. `publish` makes it plans that wait for approval. One file a kind:

    from_replay.py     strategy, tolerance: the best candidate one step away, if it surely beats what happened
    from_bundles.py    more bundles where one is too large for its broker to be within tolerance
    from_weights.py    weights of resources, where the capacity model says that they hide what brokers really run out of
    from_forecast.py   moves ahead of tomorrow's peak

Each names its numbers, and keeps silent where the interval of the improvement includes none. Whether advice is followed
decides the cluster, not the job: see docs/plans.md.
"""

from __future__ import annotations

from loadmanager.history.advising.job import Considered, Options, advise, consider
from loadmanager.history.advising.publishing import publish

__all__ = ["Considered", "Options", "advise", "consider", "publish"]
