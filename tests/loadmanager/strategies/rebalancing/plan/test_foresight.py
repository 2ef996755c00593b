"""What a plan learns from the round before: margins for loads that rise, or that come otherwise than expected."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from loadmanager.decisions.codec import given_memory, kept_memory
from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.rebalancing.plan import Plan
from loadmanager.strategies.rebalancing.plan.draft import Draft
from loadmanager.strategies.rebalancing.plan.foresight import DOUBTS, FORGOTTEN, KEPT, Expectations
from tests.loadmanager.strategies.rebalancing.cluster_models import model

SETTINGS = Settings(balancing_interval_s=60.0, balancing_tolerance=0.2)
ROUND_MS = 60_000


def at(round_: int, usage: dict[str, float], **columns: Any) -> ClusterModel:
    """A cluster in a round: each broker has ten bundles of equal load."""
    made = model(usage, {name: [used / 10] * 10 for name, used in usage.items()}, **columns)
    return msgspec.structs.replace(made, at_ms=round_ * ROUND_MS)


def rounds(*models: ClusterModel, settings: Settings = SETTINGS) -> list[Decision]:
    """The decisions of consecutive rounds, none of whose moves matter for the next model."""
    found: list[Decision] = []
    memory: object = None
    for each in models:
        found.append(Plan().decide(each, settings, memory))
        memory = found[-1].memory
    return found


def margins(*models: ClusterModel, settings: Settings = SETTINGS) -> dict[str, float]:
    """The margin of each broker in the last round, in parts of the target."""
    memory = rounds(*models[:-1], settings=settings)[-1].memory
    draft = Draft(models[-1], settings, memory)
    parts = draft.outlook.margin / draft.scale.target
    return {
        broker.name.partition(":")[0]: float(part) for broker, part in zip(models[-1].brokers.ids, parts, strict=True)
    }


def test_without_a_memory_there_are_no_margins():
    assert not Draft(at(0, {"a": 0.5, "b": 0.5}), SETTINGS).outlook.margin.any()
    assert not Draft(at(0, {"a": 0.5, "b": 0.5}), SETTINGS, {"somebody": "else's"}).outlook.margin.any()


def test_loads_that_stay_need_no_margins():
    calm = [at(number, {"a": 0.5, "b": 0.52}) for number in range(4)]
    assert set(margins(*calm).values()) == {0.0}


def test_a_load_that_rises_everywhere_is_no_error():
    even = [at(number, {"a": 0.3 + 0.1 * number, "b": 0.3 + 0.1 * number}) for number in range(4)]
    assert max(margins(*even).values()) == pytest.approx(0, abs=1e-12)


def test_a_broker_that_rises_by_itself_gets_the_larger_margin():
    rising = [at(number, {"a": 0.50 + 0.01 * number, "b": 0.5, "c": 0.5, "d": 0.5}) for number in range(4)]
    found = margins(*rising)
    assert found["a"] > found["b"] == found["c"] == found["d"] > 0


def test_one_rise_alone_is_no_trend():
    """A jump is not expected to go on; it only adds to the doubt, which is everybody's."""
    jump = [at(0, {"a": 0.5, "b": 0.5, "c": 0.5}), at(1, {"a": 0.53, "b": 0.5, "c": 0.5})]
    found = margins(*jump)
    assert found["a"] == pytest.approx(found["b"])
    target = (0.53 + 0.5 + 0.5) / 3
    wrong = np.array([0.53, 0.5, 0.5]) / target - 1
    assert found["a"] == pytest.approx(DOUBTS * np.sqrt(FORGOTTEN * np.square(wrong).mean()))


def test_doubt_is_forgotten_once_brokers_do_as_expected():
    jump = [at(0, {"a": 0.5, "b": 0.5}), at(1, {"a": 0.54, "b": 0.5})]
    calm = [at(number, {"a": 0.54, "b": 0.5}) for number in range(2, 30)]
    assert margins(*jump, *calm[:1])["a"] > margins(*jump, *calm[:8])["a"] > margins(*jump, *calm)["a"]


def test_margins_leave_room_for_the_load():
    wild = [at(number, {"a": 0.5 + 0.2 * (number % 2), "b": 0.7 - 0.2 * (number % 2)}) for number in range(6)]
    found = margins(*wild)
    assert sum(found.values()) / 2 == pytest.approx(KEPT * SETTINGS.tolerance)


def test_an_older_report_needs_the_larger_margin():
    usage = [{"a": 0.50 + 0.01 * number, "b": 0.50 - 0.005 * number, "c": 0.50 - 0.005 * number} for number in range(4)]
    fresh = [at(number, each) for number, each in enumerate(usage)]
    late = [at(number, each, report_age_s=[50.0, 50.0, 50.0]) for number, each in enumerate(usage)]
    assert margins(*late)["a"] > margins(*fresh)["a"]


@pytest.mark.parametrize(
    "why", ["other bundles", "a new incarnation", "long ago", "nothing expected of a broker without load"]
)
def test_some_brokers_teach_nothing(why: str):
    before, after = at(0, {"a": 0.5, "b": 0.5}), at(1, {"a": 0.58, "b": 0.5})
    settings = SETTINGS
    if why == "other bundles":
        after = msgspec.structs.replace(
            after, brokers=msgspec.structs.replace(after.brokers, bundles=after.brokers.bundles + 1)
        )
    elif why == "a new incarnation":
        ids = tuple(msgspec.structs.replace(each, incarnation=7) for each in after.brokers.ids)
        after = msgspec.structs.replace(after, brokers=msgspec.structs.replace(after.brokers, ids=ids))
    elif why == "long ago":
        after = msgspec.structs.replace(after, at_ms=4 * ROUND_MS)
    else:
        before = at(0, {"a": 0.0, "b": 0.0})
    assert set(margins(before, after, settings=settings).values()) == {0.0}


def test_a_report_from_a_time_in_which_bundles_moved_teaches_nothing():
    before = at(0, {"a": 0.9, "b": 0.5})
    decided = Plan().decide(before, SETTINGS)
    assert decided.moves
    there = len(decided.moves)
    after = at(1, {"a": 0.8, "b": 0.8})
    counts = np.array([10 - there, 10 + there], np.int64)
    after = msgspec.structs.replace(after, brokers=msgspec.structs.replace(after.brokers, bundles=counts))
    for window_s, taught in ((90.0, False), (30.0, True)):
        settings = SETTINGS.model_copy(update={"load_window_s": window_s})
        margin = Draft(after, settings, Plan().decide(before, settings).memory).outlook.margin
        assert bool(margin.any()) is taught


def test_a_lower_limit_is_explained():
    rising = [at(number, {"a": 0.50 + 0.03 * number, "b": 0.5, "c": 0.5}) for number in range(4)]
    settings = SETTINGS.model_copy(update={"balancing_tolerance": 0.1})
    said = [move.reason for move in rounds(*rising, settings=settings)[-1].moves]
    assert said
    assert all("kept free" in reason for reason in said)


def test_the_memory_comes_back_from_a_record():
    memory = rounds(*[at(number, {"a": 0.5 + 0.01 * number, "b": 0.5}) for number in range(3)])[-1].memory
    assert isinstance(memory, Expectations)
    assert given_memory(kept_memory(memory), Plan()) == memory


@pytest.mark.filterwarnings("error")
def test_a_broker_that_does_not_report_disturbs_nothing():
    """It has no age. That of the others counts as before."""
    silent = {"known": [True, True, False], "report_age_s": [0.0, 0.0, np.inf]}
    rising = [at(number, {"a": 0.50 + 0.01 * number, "b": 0.5, "c": 0.5}, **silent) for number in range(4)]
    rising_most, calm, unknown = Draft(rising[-1], SETTINGS, rounds(*rising[:-1])[-1].memory).outlook.margin
    assert rising_most > calm > unknown == 0
