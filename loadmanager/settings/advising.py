"""Whether the leader follows the load history's advice, and how its effect is judged."""

from __future__ import annotations

from pydantic_settings import BaseSettings

from loadmanager.settings.describing import live


class Advising(BaseSettings):
    """Advice of the load history."""

    advice_apply: bool = live(
        False, "advice is applied without anybody's approval, within its bounds", "else nothing follows it by itself"
    )
    advice_measure_s: float = live(
        3600.0, "before and after: over which the effect of advice is measured", "60 rounds", ge=0.1
    )
    advice_harm_percent: float = live(
        10.0,
        "worse by more than this, and than chance explains: advice is withdrawn",
        "less is noise of most loads",
        ge=0,
    )
    advice_step_factor: float = live(
        2.0, "one piece of advice changes a number at most by this factor", "a wrong step stays small", gt=1, le=10
    )
