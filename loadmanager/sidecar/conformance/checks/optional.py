"""The hooks that a service offers, or does not."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from loadmanager.model.host import BundleLoad
from loadmanager.sidecar import wire
from loadmanager.sidecar.conformance.checking import check
from loadmanager.sidecar.conformance.hook import Answer
from loadmanager.sidecar.conformance.stage import Skipped, Stage, expect
from loadmanager.sidecar.wire import Offer
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle

A = TypeVar("A", bound=BaseModel)


@check("prepare")
async def prepare(stage: Stage) -> None:
    """`prepare`, if it is offered, is answered 2xx, and lets nothing be served."""
    _offered(stage, Offer.PREPARE)
    bundle = stage.new_bundle()
    await stage.obeyed(stage.hook("prepare", bundle))
    await stage.refuses(stage.key_in(bundle), "its bundle is not acquired")
    await stage.serving(bundle=bundle)


@check("load")
async def load(stage: Stage) -> None:
    """`load`, if it is offered, names bundles that are held, no others, with the fields of `BundleLoad`."""
    _offered(stage, Offer.LOAD)
    here, gone = await stage.serving(), await stage.serving()
    await stage.obeyed(stage.hook("release", gone.bundle))
    answer = await stage.obeyed(stage.hook("load"))
    named = {_loaded(each, answer) for each in _shaped(answer, wire.Loads).loads}
    expect(gone.bundle not in named, f"no load of {gone.bundle}, which was released", answer)
    unknown = named - stage.acquired
    expect(not unknown, "loads of bundles that were acquired", f"one of {', '.join(map(str, unknown))}")
    await stage.serves(here.key, "load changes nothing")


@check("positions")
async def positions(stage: Stage) -> None:
    """`positions`, if it is offered, answers with positions in the bundle."""
    _offered(stage, Offer.POSITIONS)
    owned = await stage.serving()
    answer = await stage.obeyed(stage.hook("positions", owned.bundle))
    _within(owned.bundle, _shaped(answer, wire.Positions).positions, answer)


@check("rates")
async def rates(stage: Stage) -> None:
    """`rates`, if it is offered, answers with positions in the bundle and their rates, none negative."""
    _offered(stage, Offer.RATES)
    owned = await stage.serving()
    answer = await stage.obeyed(stage.hook("rates", owned.bundle))
    found = _shaped(answer, wire.Rates).rates
    _within(owned.bundle, [position for position, *_ in found], answer)
    expect(all(rate >= 0 for _, *both in found for rate in both), "no negative rate", answer)


def _offered(stage: Stage, offer: Offer) -> None:
    attachment = stage.script.attachment
    if attachment is None or offer not in attachment.offers:
        raise Skipped(f"the service does not offer `{offer}`")


def _shaped(answer: Answer, shape: type[A]) -> A:
    try:
        return shape.model_validate_json(answer.body)
    except ValidationError as error:
        wrong = error.errors()[0]
        expect(False, f"a body of the shape {shape.__name__}", f"{wrong['msg']} in {answer}")
        raise


def _loaded(told: dict[str, Any], answer: Answer) -> Bundle:
    """The bundle of one load."""
    try:
        msgspec.convert({name: value for name, value in told.items() if name != "bundle"}, BundleLoad)
        unknown = told.keys() - {"bundle", *BundleLoad.__struct_fields__}
        expect(not unknown, "the fields of `BundleLoad`", f"{', '.join(unknown)} in {answer}")
        return Bundle.parse(str(told.get("bundle")))
    except (msgspec.ValidationError, InvalidName) as error:
        expect(False, "a bundle's name, and the fields of `BundleLoad`", f"{error} in {answer}")
        raise


def _within(bundle: Bundle, found: list[int], answer: Answer) -> None:
    lo, hi = bundle.bounds
    expect(all(lo <= position < hi for position in found), f"positions from {lo} to below {hi}", answer)
