"""JSON schemas of advice, and of requests about it. The shapes are those of `plans/advice.py`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(max_length=2_000)]
Name = Annotated[str, Field(min_length=1, max_length=300)]
Scalar = bool | int | float | str | None
Ms = Annotated[int, Field(ge=0, le=1 << 53)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SettingWished(_Strict):
    """By our name and in our unit: what it was in the data, and what it should be."""

    name: Name
    was: Scalar
    to: Scalar


class SettingsWished(_Strict):
    """Settings to change together."""

    type: Literal["settings"]
    changes: Annotated[list[SettingWished], Field(max_length=100)]


class CutWished(_Strict):
    """A bundle to be cut into equal ranges."""

    bundle: Name
    parts: int


class SplitsWished(_Strict):
    """More bundles for a namespace; `was`: how many it had."""

    type: Literal["splits"]
    namespace: Name
    was: int
    cuts: Annotated[list[CutWished], Field(max_length=1_000)]


class MoveWished(_Strict):
    """Brokers by name."""

    bundle: Name
    source: Name
    destination: Name


class MovesWished(_Strict):
    """Moves ahead of a peak, which begins at `not_after_ms`."""

    type: Literal["moves"]
    moves: Annotated[list[MoveWished], Field(max_length=1_000)]
    not_before_ms: Ms
    not_after_ms: Ms


class ExpectedWished(_Strict):
    """The improvement, `before - after`, lies between `low` and `high` with 95 % confidence."""

    measure: Literal["spread", "above_tolerance"]
    before: Number
    after: Number
    low: Number
    high: Number


class ProvenanceWished(_Strict):
    """Whose data of what time, by which job of which release, of which versions of which tables."""

    cluster: Name
    data_from_ms: Ms
    data_to_ms: Ms
    job: Name
    job_version: Name
    method: Name
    tables: dict[str, int] = {}


class AdviceWished(_Strict):
    """Advice to be published. `id` may be left out: it is a digest of the rest."""

    change: Annotated[SettingsWished | SplitsWished | MovesWished, Field(discriminator="type")]
    reason: Text
    expected: ExpectedWished
    provenance: ProvenanceWished
    expires_ms: Ms
    id: str = ""
    format: int = 1
    type: Literal["advice"] = "advice"


class EffectShown(BaseModel):
    """What came of it, as the `rounds` between two times say: `change` is after - before; worse by more than `bound`
    is harm."""

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
    """What a plan is made of, and promises; `baseline` is the time before that its effect is compared with."""

    change: dict[str, Any]
    expected: dict[str, Any]
    provenance: dict[str, Any]
    expires_ms: int
    baseline: dict[str, Any] | None
    effect: EffectShown | None
