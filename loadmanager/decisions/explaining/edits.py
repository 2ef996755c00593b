"""Changes one aspect of a model, for "what if" and "what would have to change". Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from loadmanager.model.cluster import ALLOWED, FREE, ClusterModel
from loadmanager.settings import Settings


def with_brokers(model: ClusterModel, **columns: Any) -> ClusterModel:
    """The model with other columns of its brokers."""
    return msgspec.structs.replace(model, brokers=msgspec.structs.replace(model.brokers, **columns))


def with_bundles(model: ClusterModel, **columns: Any) -> ClusterModel:
    """The model with other columns of its bundles."""
    return msgspec.structs.replace(model, bundles=msgspec.structs.replace(model.bundles, **columns))


def with_constraints(model: ClusterModel, **columns: Any) -> ClusterModel:
    """The model with other hard rules."""
    return msgspec.structs.replace(model, constraints=msgspec.structs.replace(model.constraints, **columns))


def with_settings(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Changed settings, validated. Raises pydantic.ValidationError."""
    return Settings(**{**settings.model_dump(), **changes})


def rested(model: ClusterModel, row: int) -> ClusterModel:
    """As if no move of this bundle were remembered."""
    moved_s = model.bundles.moved_s.copy()
    moved_s[row] = math.inf
    return with_bundles(model, moved_s=moved_s, left={k: v for k, v in model.bundles.left.items() if k != row})


def all_rested(model: ClusterModel) -> ClusterModel:
    """As if no move of any bundle were remembered."""
    return with_bundles(model, moved_s=np.full(len(model.bundles), math.inf), left={})


def freed(model: ClusterModel, row: int) -> ClusterModel:
    """As if no policy kept this bundle where it is."""
    fixed = model.constraints.fixed.copy()
    fixed[row] = FREE
    return with_constraints(model, fixed=fixed)


def admitted(model: ClusterModel, row: int) -> ClusterModel:
    """As if every broker might take this bundle."""
    kind, forbidden = model.constraints.kind.copy(), model.constraints.forbidden
    kind[row] = len(forbidden)
    anywhere = np.full((1, len(model.brokers)), ALLOWED, forbidden.dtype)
    return with_constraints(model, kind=kind, forbidden=np.concatenate((forbidden, anywhere)))


def landed(model: ClusterModel, row: int) -> ClusterModel:
    """As if this bundle were not on its way."""
    in_flight = model.bundles.in_flight.copy()
    in_flight[row] = False
    return with_bundles(model, in_flight=in_flight)


def resumed(model: ClusterModel, at: int) -> ClusterModel:
    """As if this broker were not paused, and had just reported."""
    paused, known = model.brokers.paused.copy(), model.brokers.known.copy()
    paused[at], known[at] = False, True
    return with_brokers(model, paused=paused, known=known)


def multiplied(model: ClusterModel, rows: Any, times: float) -> ClusterModel:
    """The model with the load of these bundles (rows, or a mask) multiplied, and their brokers' usage accordingly."""
    bundles, brokers = model.bundles, model.brokers
    factor = np.ones(len(bundles))
    factor[rows] = times
    load = bundles.load * factor[:, None]
    used, held = brokers.used.copy(), bundles.owner >= 0
    np.add.at(used, bundles.owner[held], (load - bundles.load)[held])
    rates, bytes_ = bundles.rate_msg_s * factor, bundles.throughput_bytes_s * factor
    changed = with_bundles(model, load=load, rate_msg_s=rates, throughput_bytes_s=bytes_)
    return with_brokers(
        changed,
        used=np.maximum(used, 0.0),
        rate_msg_s=_moved_on(brokers.rate_msg_s, bundles.owner, rates - bundles.rate_msg_s),
        throughput_bytes_s=_moved_on(brokers.throughput_bytes_s, bundles.owner, bytes_ - bundles.throughput_bytes_s),
    )


def _moved_on(totals: Any, owner: Any, more: Any) -> Any:
    found, held = totals.copy(), owner >= 0
    np.add.at(found, owner[held], more[held])
    return np.maximum(found, 0.0)


def burdened(model: ClusterModel, at: int, resource: int, used: float) -> ClusterModel:
    """As if this broker used `used` of a resource, the difference by immovable work."""
    column = model.brokers.used.copy()
    column[at, resource] = used
    return with_brokers(model, used=column)
