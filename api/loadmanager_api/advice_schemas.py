"""JSON schemas of advice, and of requests about it. The shapes are those of `plans/advice.py`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from loadmanager_api.json_types import STRICT, WHOLE, Whole

Text = Annotated[str, Field(max_length=2_000)]
Name = Annotated[str, Field(min_length=1, max_length=300)]
Scalar = bool | int | float | str | None
Ms = Annotated[int, Field(strict=True, ge=0, le=1 << 53), WHOLE]
Number = Annotated[float, Field(allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = STRICT


class SettingWished(_Strict):
    """One setting by our name and in our unit: its value in the data, and the proposed one."""

    name: Name
    was: Scalar
    to: Scalar


class SettingsWished(_Strict):
    """Settings to change together."""

    type: Literal["settings"]
    changes: Annotated[list[SettingWished], Field(max_length=100)]


class CutWished(_Strict):
    """A bundle to cut into equal ranges."""

    bundle: Name
    parts: Whole


class SplitsWished(_Strict):
    """More bundles for a namespace. `was` is their present number."""

    type: Literal["splits"]
    namespace: Name
    was: Whole
    cuts: Annotated[list[CutWished], Field(max_length=1_000)]


class MoveWished(_Strict):
    """One move: a bundle, and its brokers by name."""

    bundle: Name
    source: Name
    destination: Name


class MovesWished(_Strict):
    """Moves to make before a peak, which begins at `not_after_ms`."""

    type: Literal["moves"]
    moves: Annotated[list[MoveWished], Field(max_length=1_000)]
    not_before_ms: Ms
    not_after_ms: Ms


class ExpectedWished(_Strict):
    """The expected improvement, `before - after`. It lies between `low` and `high` with 95 % confidence."""

    measure: Literal["spread", "above_tolerance"]
    before: Number
    after: Number
    low: Number
    high: Number


class ProvenanceWished(_Strict):
    """Where the advice comes from: cluster, time of the data, job, release, and versions of the tables."""

    cluster: Name
    data_from_ms: Ms
    data_to_ms: Ms
    job: Name
    job_version: Name
    method: Name
    tables: dict[str, Whole] = {}


class AdviceWished(_Strict):
    """Advice to publish. `id` may be left out: it is a digest of the rest."""

    change: Annotated[SettingsWished | SplitsWished | MovesWished, Field(discriminator="type")]
    reason: Text
    expected: ExpectedWished
    provenance: ProvenanceWished
    expires_ms: Ms
    id: str = ""
    format: Whole = 1
    type: Literal["advice"] = "advice"


class EffectShown(BaseModel):
    """The measured effect, by the `rounds` between two times. `change` is after - before; a worsening by more than
    `bound` is harm.
    """

    measure: str
    before: float
    after: float
    change: float
    bound: float
    harm: bool
    measured_from: datetime
    measured_to: datetime
    rounds: int
    text: str


class AdviceShown(BaseModel):
    """What a plan is made of, and what it promises. Its effect is compared with the time `baseline`, before it."""

    change: dict[str, Any]
    expected: dict[str, Any]
    provenance: dict[str, Any]
    expires_ms: int
    baseline: dict[str, Any] | None
    effect: EffectShown | None
