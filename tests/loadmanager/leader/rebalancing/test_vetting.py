"""What a strategy answers is not believed: what must not be moved is not moved, whatever it says the leader goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from loadmanager.leader.rebalancing import decider
from loadmanager.leader.rebalancing.decider import Asking, StrategyFailed
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Candidate, Certificate, Decision, Move
from loadmanager.strategies.rebalancing.strategy import RULE, vetted
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.runtime.tasks import at_once
from tests.loadmanager.strategies.rebalancing.cluster_models import model

MODEL = model({"a": 0.9, "b": 0.1, "c": 0.1}, {"a": [0.3, 0.2, 0.1], "b": [0.1]})
A, B, C = MODEL.brokers.ids
X, Y, Z, W = MODEL.bundles.ids
NOBODY = BrokerId("nobody:1", 1)


def move(bundle: Bundle = X, to: BrokerId | None = B, **more: Any) -> Move:
    return Move(bundle, A, to, "because", **more)


def refused(*moves: Move, given: Any = MODEL) -> list[str]:
    decision = vetted(Decision(moves, "as told"), given)
    assert all(each.rule == RULE for each in decision.refused)
    assert not decision.refused or "of the strategy's moves must not be made" in decision.reason
    kept = {move.bundle for move in decision.moves}
    assert kept.isdisjoint(each.subject for each in decision.refused)
    return [each.detail for each in decision.refused]


def test_what_makes_sense_stays_as_it_is():
    decision = Decision((move(), move(Y, C), move(Z, None)), "well", memory=object(), spread_before=0.3)
    assert vetted(decision, MODEL) == decision
    assert vetted(decision, MODEL).memory is decision.memory


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (move(to=NOBODY), "takes no part"),
        (move(to=BrokerId(B.name, B.incarnation + 1)), "takes no part"),
        (move(to=A), "is at a:6650 already"),
        (move(gain=nan), "its gain is nan"),
        (move(load=inf), "its load is inf"),
        (move(destination_after=-inf), "its destination_after is -inf"),
    ],
)
def test_a_move_that_makes_no_sense_is_not_made_and_the_others_are(wrong: Move, why: str):
    decision = vetted(Decision((wrong, move(Y, C)), "as told"), MODEL)
    assert [each.bundle for each in decision.moves] == [Y]
    assert why in decision.refused[0].detail
    assert why in decision.reason


def test_a_bundle_moves_once():
    assert refused(move(X, B), move(X, C), move(Y, C)) == ["it is in the decision twice"]


def test_what_goes_with_a_move_that_must_not_be_made_is_not_made_either():
    decision = vetted(Decision((move(X, B, group=3), move(Y, NOBODY, group=3), move(Z, C)), ""), MODEL)
    assert [each.bundle for each in decision.moves] == [Z]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"fixed": [0, -1, -1, -1], "rules": ("pinned to a:6650",)}, "it stays where it is: pinned to a:6650"),
        ({"draining": [False, True, False]}, "b:6650 drains"),
        ({"paused": [False, True, False]}, "b:6650 is paused"),
    ],
)
def test_hard_rules_hold_whatever_the_strategy_thinks_of_them(columns: dict[str, Any], why: str):
    given = model({"a": 0.9, "b": 0.1, "c": 0.1}, {"a": [0.3, 0.2, 0.1], "b": [0.1]}, **columns)
    assert refused(move(X, B), given=given) == [why]


def test_bundle_unknown_to_the_model_is_looked_up_when_its_move_begins():
    assert refused(move(Bundle("no/where", 0, 1))) == []


def test_numbers_of_numpy_are_numbers():
    gain: Any = np.float32(0.5)
    [made] = vetted(Decision((move(gain=gain),), "", counts={"x": np.int64(3)}), MODEL).moves  # type: ignore[dict-item]
    assert type(made.gain) is float


@pytest.mark.parametrize(
    "answer",
    [
        None,
        (),
        {"moves": ()},
        Decision((None,), ""),  # type: ignore[arg-type]
        Decision((("x", "a", "b"),), ""),  # type: ignore[arg-type]
        Decision((Move("x", A, B, ""),), ""),  # type: ignore[arg-type]
        Decision((), 7),  # type: ignore[arg-type]
        Decision((), "", candidates=(Candidate(X, A, "b", 0.0, "", ""),)),  # type: ignore[arg-type]
        Decision((), "", certificate=Certificate(object(), 0.0, "", "")),  # type: ignore[arg-type]
    ],
)
async def test_what_is_no_decision_is_said_to_be_none(answer: Any):
    with pytest.raises(StrategyFailed, match="the strategy plan failed"):
        await ask(lambda: answer)


# --- asking


class Strategy:
    name = "strange"

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    def decide(self, model: object, settings: object, memory: object = None) -> Any:
        return self.answer()


SETTINGS = Settings.model_construct()


async def ask(answer: Callable[[], Any], by: Asking | None = None) -> Decision:
    return await (by or Asking(asyncio.to_thread)).ask(Strategy(answer), MODEL, SETTINGS, None)


@pytest.mark.parametrize("error", [ValueError("x"), StopIteration(), SystemExit(1), MemoryError(), RecursionError()])
async def test_whatever_a_strategy_raises_is_told_and_nothing_else_happens(error: BaseException):
    def fail() -> Any:
        raise error

    async with asyncio.timeout(60):
        with pytest.raises(StrategyFailed, match=type(error).__name__):
            await ask(fail)


async def test_a_strategy_that_changes_the_model_has_failed():
    from loadmanager.model.observation import _sealed  # the models of tests can be written to

    given = _sealed(model({"a": 0.9, "b": 0.1}, {"a": [0.3]}))

    def decide(seen: Any, settings: object, memory: object = None) -> Decision:
        seen.brokers.used[:] = 0
        return Decision((), "")

    strategy = Strategy(lambda: None)
    strategy.decide = decide  # type: ignore[method-assign]
    with pytest.raises(StrategyFailed, match="read-only"):
        await Asking(at_once).ask(strategy, given, SETTINGS, None)
    assert given.brokers.used[0, 0] == 0.9


async def test_silent_strategy_is_not_waited_for_nor_asked_before_it_answers(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(decider, "ANSWER_S", 0.05)
    operating, go_on, calls = Asking(asyncio.to_thread), threading.Event(), []

    def slow() -> Decision:
        calls.append(1)
        go_on.wait(100)
        return Decision((), "at last")

    with pytest.raises(StrategyFailed, match="has not answered within"):
        await ask(slow, operating)
    with pytest.raises(StrategyFailed, match="an earlier question"):
        await ask(slow, operating)
    assert len(calls) == 1
    go_on.set()
    async with asyncio.timeout(60):
        while True:
            try:
                found = await ask(slow, operating)
                break
            except StrategyFailed:
                await asyncio.sleep(0.01)
    assert found.reason == "at last"
