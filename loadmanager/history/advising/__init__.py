"""Advice from the load history: what the leader might change, the expected improvement, and how sure that is.

`advise(lake, window, options)` returns a list of `loadmanager.leader.plans.advice.Advice`; `consider` also says why a
kind has none. `publish` turns advice into plans that wait for approval. One file per kind:

    from_replay.py     strategy, tolerance: the best candidate one step away, if it surely beats what happened
    from_bundles.py    more bundles where one is too large for its broker to be within tolerance
    from_weights.py    weights of resources, where the capacity model says that they hide what brokers really run out of
    from_forecast.py   moves ahead of tomorrow's peak

Each gives its numbers, and advises nothing where the interval of the improvement includes zero. The cluster decides
whether to follow advice, not the job: see docs/advice.md.
"""

from __future__ import annotations

from loadmanager.history.advising.job import Considered, Options, advise, consider
from loadmanager.history.advising.publishing import publish

__all__ = ["Considered", "Options", "advise", "consider", "publish"]
