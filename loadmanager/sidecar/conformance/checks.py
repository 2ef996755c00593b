"""The contract as a list of promises, in the order in which they are tried: `CHECKS`.

Each check is a function whose docstring begins with what a service promises.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from pydantic import BaseModel, ValidationError

from loadmanager.client.cluster import header_of
from loadmanager.client.redirection import (
    ANOTHER_CLUSTER,
    CLUSTER_HEADER,
    MOVED,
    PROBLEM_TYPE,
    TOKEN_HEADER,
    Moved,
    NotServing,
)
from loadmanager.model.host import BundleLoad
from loadmanager.sidecar import wire
from loadmanager.sidecar.conformance.played_sidecar import CLUSTER, NOTHING, UNREAD, VALID_MS, Grant, Poll
from loadmanager.sidecar.conformance.runner import Check, Run
from loadmanager.sidecar.conformance.stage import (
    PROBE_S,
    SLACK_S,
    WIDTH,
    Answer,
    Failure,
    Hook,
    Skipped,
    Stage,
    expect,
    past,
    signed,
)
from loadmanager.sidecar.wire import Claimed, Offer, Secret
from statechannel.errors import InvalidName
from statechannel.law.bundle import FULL_UPPER, Bundle, Key
from statechannel.law.partition import ClusterIdentity

CHECKS: list[Check] = []


def check(name: str, *, starts: bool = False, stops: bool = False) -> Callable[[Run], Run]:
    """Append a function to the checks, with the first paragraph of its docstring as the promise."""

    def add(run: Run) -> Run:
        promise = " ".join((run.__doc__ or "").partition("\n\n")[0].split())
        CHECKS.append(Check(name, promise, run, starts, stops))
        return run

    return add


# --- how a service finds its sidecar, keeps it, and finds it again

AWAY_S = 1.0
"""The time for which the sidecar's port refuses connections, beyond the deadlines."""
CONFLICTS = 2
POLLS = 6
SURELY_S = 1.0
"""A lease is surely valid until this long before its end, although both sides read their clocks at different times."""
LIVELY_MS = 20_000
"""A lease that does not run out while a check looks at other reasons to stop serving."""


@check("attach", starts=True)
async def attach(stage: Stage) -> None:
    """The service attaches with the secret of the file, and names its hooks and where clients reach it."""
    await stage.open()
    await stage.start()
    await stage.until_attached(stage.script.attached, stage.options.start_s)
    attachment = stage.script.attachment
    assert attachment is not None
    expect(bool(attachment.urls), "at least one address in `urls`", dict(attachment.urls))
    expect(not stage.watch.refused_secrets, "the secret with each request", stage.recent_requests)


@check("attach-again", starts=True)
async def attach_again(stage: Stage) -> None:
    """The service tries again to attach: after a reset, while the port refuses, and after 409."""
    await stage.gate.shut()
    await stage.gate.open(None)
    before = stage.gate.resets
    await stage.start()
    deadline_s = asyncio.get_running_loop().time() + stage.options.start_s
    while stage.gate.resets == before:
        expect(stage.runs, "the service tries again after a connection that was reset", stage.how_it_ended)
        expect(asyncio.get_running_loop().time() < deadline_s, "the service connects to the sidecar", "nothing")
        await asyncio.sleep(0.02)
    stage.note("reset its connections")
    await stage.gate.shut()
    stage.note(f"refused connections for {AWAY_S:g} s")
    await asyncio.sleep(AWAY_S)
    refused = stage.script.refused
    stage.script.conflicts = CONFLICTS
    await stage.open()
    attached = stage.script.attached
    stage.note(f"took connections, and answered the first {CONFLICTS} requests to attach with 409, Retry-After: 1")
    await stage.until_attached(attached, 2 * stage.options.patience_s)
    expect(stage.script.refused - refused == CONFLICTS, "one attempt to attach after the other", stage.recent_requests)


@check("one-poll")
async def one_poll(stage: Stage) -> None:
    """The service polls the lease again and again, one request after the other."""
    await stage.taken_in()
    stage.watch.most_polls = 0
    before = len(stage.script.polls)
    known = await stage.script.until(lambda: len(stage.script.polls) >= before + POLLS, stage.options.patience_s)
    expect(known, f"{POLLS} polls", stage.recent_requests)
    expect(stage.watch.most_polls <= 1, "one poll at a time", f"{stage.watch.most_polls} at once")


@check("session-ended")
async def session_ended(stage: Stage) -> None:
    """After 410 the service forgets all bundles, though their lease is valid, and attaches again."""
    stage.grant(Grant({0: LIVELY_MS}))
    await stage.taken_in()
    owned = await stage.serving()
    before = stage.script.attached
    stage.script.end()
    stage.note("answered polls with 410: the session has ended")
    await stage.until_attached(before)
    await stage.taken_in()
    await stage.refuses(owned.key, "its bundle was acquired in an earlier session")
    await stage.serving()


@check("sidecar-dies")
async def sidecar_dies(stage: Stage) -> None:
    """Without its sidecar the service serves until its deadlines, not longer; later it attaches again."""
    stage.grant(Grant({0: VALID_MS}))
    owned = await stage.serving()
    await stage.taken_in()
    await stage.gate.shut()
    stage.note("closed the sidecar's port, and reset its connections")
    first = await stage.probe(owned.key)
    if first.came_s < stage.script.polls[-UNREAD].arrived_s + VALID_MS / 1000 - SURELY_S:
        expect(first.status == 200, f"status 200 for {owned.key}: its lease is still valid", first)
    await past(stage.script.deadline_s(0) + SLACK_S)
    await stage.refuses(owned.key, "its lease has run out", AWAY_S)
    before = stage.script.attached
    stage.script.forget()
    await stage.open()
    stage.note("opened the sidecar's port; it does not know the old session")
    await stage.until_attached(before)
    await stage.taken_in()
    await stage.refuses(owned.key, "its bundle was acquired in an earlier session")
    await stage.serving()


@check("new-secret")
async def new_secret(stage: Stage) -> None:
    """When the sidecar restarts with another secret (401), the service forgets all bundles, and reads the file."""
    stage.grant(Grant({0: LIVELY_MS}))
    await stage.taken_in()
    owned = await stage.serving()
    before = stage.script.attached
    await stage.gate.shut()
    stage.script.forget()
    await stage.renew_secret()
    stage.grant(Grant({0: LIVELY_MS}))
    await stage.open()
    stage.note("closed the sidecar's port, and opened it again with a new secret in the file")
    await stage.until_attached(before)
    await stage.taken_in()
    await stage.refuses(owned.key, "its bundle was acquired in an earlier session")
    await stage.serving()


# --- what a service owes to each hook, whatever way it comes

OLD = timedelta(minutes=10)


def _forgeries(hook: Hook, secret: Secret) -> dict[str, tuple[dict[str, str], bytes]]:
    """Headers and body of forged copies, by how they are forged."""
    right = signed(hook, secret)
    now = str(int(datetime.now(UTC).timestamp()))
    older = signed(hook, secret, datetime.now(UTC) - timedelta(minutes=1))
    return {
        "without a signature": ({}, hook.body),
        "signed with another secret": (signed(hook, Secret.new()), hook.body),
        "with another body than the signed one": (right, hook.body + b" "),
        "with another webhook-id than the signed one": ({**right, "webhook-id": f"{hook.message_id}0"}, hook.body),
        "with another timestamp than the signed one": ({**older, "webhook-timestamp": now}, hook.body),
    }


@check("signature")
async def signature(stage: Stage) -> None:
    """A hook without the right signature is answered 4xx, and changes nothing."""
    owned, wanted = await stage.serving(), stage.new_bundle()
    for hook in (stage.hook("abandon", owned.bundle), stage.acquiring(wanted)[0]):
        for how, (headers, body) in _forgeries(hook, stage.secret).items():
            _declined(await stage.send(hook, headers=headers, body=body, how=how), f"the hook {hook}, {how}")
    await stage.serves(owned.key, "forged hooks change nothing")
    await stage.refuses(stage.key_in(wanted), "forged hooks change nothing")
    await stage.obeyed(stage.hook("abandon", owned.bundle), "rightly signed")


@check("timestamp")
async def timestamp(stage: Stage) -> None:
    """A hook whose timestamp differs from now by more than five minutes is answered 4xx, and changes nothing."""
    owned = await stage.serving()
    for at, how in ((-OLD, "signed ten minutes ago"), (OLD, "signed ten minutes in the future")):
        hook = stage.hook("abandon", owned.bundle)
        answer = await stage.send(hook, headers=signed(hook, stage.secret, datetime.now(UTC) + at), how=how)
        _declined(answer, f"a hook that was {how}")
    await stage.serves(owned.key, "hooks with a wrong time change nothing")


@check("acquire-twice")
async def acquire_twice(stage: Stage) -> None:
    """The repeat of an `acquire` is answered 2xx, and the bundle is served on."""
    owned = await stage.serving()
    await stage.obeyed(owned.hook, "again")
    await stage.serves(owned.key, "a repeat changes nothing")


@check("release-twice")
async def release_twice(stage: Stage) -> None:
    """The repeat of a `release` is answered as the first one, with the same `hand_off`."""
    owned = await stage.serving()
    hook = stage.hook("release", owned.bundle)
    first = await stage.obeyed(hook)
    expect(isinstance(first.json(), dict), "a JSON object in answer to `release`", first)
    second = await stage.obeyed(hook, "again")
    expect(
        isinstance(second.json(), dict) and second.json().get("hand_off") == first.json().get("hand_off"),
        f"the same hand_off as in the first answer ({first})", second,
    )  # fmt: skip


@check("sequence")
async def sequence(stage: Stage) -> None:
    """A hook with a lower sequence than one that came before for its bundle is answered 409, and changes nothing."""
    late = stage.hook("release", bundle := stage.new_bundle())
    owned = await stage.serving(bundle=bundle)
    _conflict(await stage.send(late, how="late"), late)
    await stage.serves(owned.key, "a release from before its acquire changes nothing")
    await stage.obeyed(stage.hook("release", bundle))
    _conflict(await stage.send(owned.hook, how="again, late"), owned.hook)
    await stage.refuses(owned.key, "a copy of acquire that comes after the release changes nothing")


@check("other-session")
async def other_session(stage: Stage) -> None:
    """A hook of another session is answered 409, and changes nothing."""
    owned = await stage.serving()
    hook = stage.hook("abandon", owned.bundle, session="0123456789abcdef")
    _conflict(await stage.send(hook, how="of another session"), hook)
    await stage.serves(owned.key, "hooks of another session change nothing")


@check("abandon")
async def abandon(stage: Stage) -> None:
    """After the answer to `abandon` the bundle is not served; the same hook for an unknown bundle is answered 2xx."""
    owned = await stage.serving()
    await stage.obeyed(stage.hook("abandon", owned.bundle))
    await stage.refuses(owned.key, "its bundle was abandoned")
    await stage.obeyed(stage.hook("abandon", stage.new_bundle()), "for a bundle that it never had")
    await stage.serving(bundle=owned.bundle)


@check("release-unknown")
async def release_unknown(stage: Stage) -> None:
    """A `release` of a bundle that the service does not have is answered 2xx, without a `hand_off`."""
    answer = await stage.obeyed(stage.hook("release", stage.new_bundle()), "for a bundle that it never had")
    said = answer.json()
    expect(isinstance(said, dict) and said.get("hand_off") is None, "a JSON object without a hand_off", answer)


@check("split")
async def split(stage: Stage) -> None:
    """After a split (release of the parent, acquire of two children) the keys of both children are served."""
    parent = await stage.serving()
    middle = parent.key.position
    await stage.obeyed(stage.hook("release", parent.bundle))
    lower = Bundle(parent.bundle.namespace, parent.bundle.lo, middle)
    upper = Bundle(parent.bundle.namespace, middle, parent.bundle.hi)
    for child in (lower, upper):
        await stage.own(child)
    for position in (lower.lo, middle - 1, middle, upper.hi - 1):
        await stage.serves(stage.key(position), "its bundle was acquired after the split")


@check("hand-off")
async def hand_off(stage: Stage) -> None:
    """What `release` returned may come back with a later `acquire` of the same bundle, under a higher token."""
    owned = await stage.serving()
    handed = _handed(await stage.obeyed(stage.hook("release", owned.bundle)))
    again = await stage.serving(bundle=owned.bundle, hand_off=handed)
    expect(again.token > owned.token, "a higher token", again.token)


@check("fence")
async def fence(stage: Stage) -> None:
    """An `acquire` under a lower token than the storage has seen for the bundle is declined with 4xx."""
    older = stage.new_token()
    owned = await stage.serving()
    await stage.obeyed(stage.hook("release", owned.bundle))
    hook, _ = stage.acquiring(owned.bundle, token=older)
    answer = await stage.send(hook, how=f"under token {older}, after {owned.token}")
    _declined(answer, "an acquire under an older token")
    await stage.refuses(owned.key, "its acquire was declined")


def _handed(answer: Answer) -> bytes | None:
    said = answer.json()
    expect(isinstance(said, dict), "a JSON object in answer to `release`", answer)
    handed = said.get("hand_off")
    if handed is None:
        return None
    try:
        decoded = base64.b64decode(handed, validate=True)
    except (binascii.Error, TypeError, ValueError):
        decoded = None
    expect(decoded is not None and len(decoded) <= 65_536, "a hand_off in base64, of at most 64 KiB", answer)
    return decoded


def _declined(answer: Answer, what: str) -> None:
    expect(answer.declined, f"4xx for {what}", answer)


def _conflict(answer: Answer, hook: Hook) -> None:
    expect(answer.status == 409, f"409 for the hook {hook}", answer)


# --- hooks that are sent at the same moment, and come in any order

APART_S = (0.0, 0.0, 0.002, 0.02)
"""The times between two hooks of a meeting."""


@check("acquire-meets-abandon")
async def acquire_meets_abandon(stage: Stage) -> None:
    """An `acquire` and the `abandon` after it, sent at the same moment, leave the bundle not served."""
    for apart_s, reverse in itertools.product(APART_S, (False, True)):
        bundle = stage.new_bundle()
        acquire, _ = stage.acquiring(bundle)
        abandon = stage.hook("abandon", bundle)
        first, second = (abandon, acquire) if reverse else (acquire, abandon)
        sending = asyncio.create_task(stage.send(first, how="at once with the next"))
        await asyncio.sleep(apart_s)
        answers = dict(zip((first.kind, second.kind), await asyncio.gather(sending, stage.send(second)), strict=True))
        expect(answers["abandon"].well, "2xx for the hook abandon", answers["abandon"])
        acquired = answers["acquire"]
        expect(acquired.well or acquired.declined, "2xx or 4xx for the hook acquire", acquired)
        await stage.refuses(stage.key_in(bundle), "its abandon has a higher sequence than its acquire")


@check("release-meets-acquire")
async def release_meets_acquire(stage: Stage) -> None:
    """A `release` sent while the service may still load the bundle leaves the bundle not served."""
    for _ in APART_S:
        bundle = stage.new_bundle()
        acquire, _token = stage.acquiring(bundle)
        release = stage.hook("release", bundle)
        _, released = await asyncio.gather(stage.send(acquire, how="at once with release"), stage.send(release))
        expect(released.well, "2xx for the hook release", released)
        await stage.refuses(stage.key_in(bundle), "its release has a higher sequence than its acquire")


# --- the hooks that a service may offer

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


# --- when a service serves, and for how long

SHORT_MS = 1_000
LATE_S = 0.8
"""The time by which an answer is late. A service that counts from the answer serves so much too long."""


@check("no-lease")
async def no_lease(stage: Stage) -> None:
    """A bundle that was acquired is not served before there is a lease, and is served by the first one."""
    partition = stage.new_partition()
    stage.grant(NOTHING)
    await stage.taken_in()
    owned = await stage.own(partition=partition)
    await stage.refuses(owned.key, "there is no lease")
    stage.grant(Grant({partition: VALID_MS}))
    await stage.serves(owned.key, "there is a lease now")


@check("partitions")
async def partitions(stage: Stage) -> None:
    """A lease for one partition does not let bundles of another one be served."""
    stage.grant(Grant({0: VALID_MS}))
    partition = stage.new_partition()
    here, there = await stage.serving(), await stage.own(partition=partition)
    await stage.refuses(there.key, f"its partition is {partition}, and has no lease")
    await stage.serves(here.key, "partition 0 has a lease")


@check("runs-out")
async def runs_out(stage: Stage) -> None:
    """When polls are not answered the lease runs out; the next answer lets the bundle be served again."""
    stage.grant(Grant({0: SHORT_MS}))
    owned = await stage.serving()
    await stage.taken_in()
    stage.script.hold()
    stage.note("answered no poll")
    await past(stage.script.deadline_s(0) + SLACK_S)
    await stage.refuses(owned.key, "its lease has run out")
    stage.grant(Grant())
    stage.script.resume()
    stage.note("answered polls again")
    await stage.serves(owned.key, "there is a new lease")


@check("late-answer")
async def late_answer(stage: Stage) -> None:
    """The lease counts from before the question was sent, however late the answer comes."""
    stage.grant(Grant({0: SHORT_MS}))
    owned = await stage.serving()
    await stage.taken_in()
    poll = await _held(stage)
    await past(poll.arrived_s + LATE_S)
    poll.release(Grant({0: SHORT_MS}))
    stage.note(f"answered a poll {LATE_S:g} s late with {SHORT_MS} ms for partition 0, and no other poll")
    await past(poll.arrived_s + SHORT_MS / 1000)
    await stage.refuses(owned.key, "its lease counts from before the question, and has run out", LATE_S / 2)
    stage.grant(Grant())
    stage.script.resume()
    await stage.serves(owned.key, "there is a new lease")


@check("newest-answer")
async def newest_answer(stage: Stage) -> None:
    """The newest answer counts: what it does not grant must not be served, though an earlier answer did."""
    partition = stage.new_partition()
    stage.grant(Grant({0: LIVELY_MS, partition: LIVELY_MS}))
    here, there = await stage.serving(), await stage.serving(partition=partition)
    await stage.taken_in()
    stage.grant(Grant({0: LIVELY_MS}))
    await stage.taken_in()
    await stage.refuses(there.key, "the newest answer has no lease for its partition")
    await stage.serves(here.key, "the newest answer has a lease for its partition")
    stage.grant(Grant({0: VALID_MS, partition: VALID_MS}))
    await stage.serves(there.key, "there is a lease for its partition again")


@check("abandon-in-lease")
async def abandon_in_lease(stage: Stage) -> None:
    """A lease says which bundles to abandon; the hook with the same sequence may come later, and is answered 2xx."""
    owned, other = await stage.serving(), await stage.serving()
    hook = stage.hook("abandon", owned.bundle)
    stage.grant(Grant(abandon=((owned.bundle, hook.sequence),)))
    await stage.taken_in()
    await stage.refuses(owned.key, "the lease said to abandon its bundle")
    await stage.serves(other.key, "the lease said nothing of its bundle")
    await stage.obeyed(hook, "which the lease named before")
    stage.grant(Grant())
    await stage.taken_in()
    await stage.refuses(owned.key, "its bundle was abandoned")
    again = await stage.serving(bundle=owned.bundle)
    stage.grant(Grant(abandon=((owned.bundle, hook.sequence),)))
    await stage.taken_in()
    await stage.serves(again.key, "an order with a lower sequence than its acquire changes nothing")


@check("shared")
async def shared(stage: Stage) -> None:
    """Bundles of a namespace that the lease calls shared are served without a deadline, and only while it does."""
    stage.grant(Grant({}, shared=(stage.options.namespace,)))
    owned = await stage.own(partition=stage.new_partition())
    await stage.serves(owned.key, "its namespace is shared")
    stage.grant(NOTHING)
    await stage.taken_in()
    await stage.refuses(owned.key, "its namespace is not shared any more, and there is no lease")


@check("paused")
async def paused(stage: Stage) -> None:
    """A service that was stopped (SIGSTOP) beyond its lease does not serve what came meanwhile."""
    stage.grant(Grant({0: SHORT_MS}))
    owned = await stage.serving()
    await stage.taken_in()
    stage.script.hold()
    stage.service.pause()
    stage.note("stopped the process, and answered no poll")
    try:
        asking = asyncio.create_task(stage.probe(owned.key))
        await past(stage.script.deadline_s(0) + SLACK_S)
    finally:
        stage.service.go_on()
    answer = await asking
    stage.note("continued it after its lease")
    expect(answer.status != 200, f"another status than 200 for {owned.key}: its lease ran out meanwhile", answer)
    await stage.refuses(owned.key, "its lease has run out")
    stage.grant(Grant())
    stage.script.resume()
    await stage.serves(owned.key, "there is a new lease")


async def _held(stage: Stage) -> Poll:
    """Hold all polls; give one that arrived after that."""
    stage.script.hold()
    before = len(stage.script.polls)
    for poll in stage.script.polls:
        poll.release()
    arrived = await stage.script.until(lambda: len(stage.script.polls) > before, stage.options.patience_s)
    expect(arrived, "the service polls the lease", stage.recent_requests)
    return stage.script.polls[-1]


# --- what a service answers to its clients, and what it asks its sidecar for them

SLOW_S = 1.0
"""The least time that a request to `--slow` takes."""
HEAD_STARTS_S = (0.2, 0.4, 0.6)
"""The times after which a release follows a slow request: the next one if the release overtook the request."""
CLIENTS = 4
RETRY_AFTER_S = 7.0
OWNER = "10.9.8.7:8080"
OWNER_URLS = {"http": "http://10.9.8.7:9000", "pulsar": "pulsar://10.9.8.7:6650"}


@check("edges")
async def edges(stage: Stage) -> None:
    """A bundle has the keys at positions lo ≤ p < hi, and no others."""
    owned = await stage.serving()
    lo, hi = owned.bundle.bounds
    for position in (lo, hi - 1):
        await stage.serves(stage.key(position), f"its position {position:#010x} is in {owned.bundle}")
    for position in (lo - 1, hi):
        await stage.refuses(stage.key(position), f"its position {position:#010x} is not in {owned.bundle}")


@check("ends")
async def ends(stage: Stage) -> None:
    """The first bundle of the hash space has position 0, the last one has 0xffffffff: its hi is 2**32."""
    namespace = stage.options.namespace
    for bundle, position in (
        (Bundle(namespace, 0, WIDTH), 0),
        (Bundle(namespace, FULL_UPPER - WIDTH, FULL_UPPER), FULL_UPPER),
    ):
        await stage.own(bundle)
        await stage.serves(stage.key(position), f"its position {position:#010x} is in {bundle}")
        await stage.obeyed(stage.hook("abandon", bundle))


@check("token")
async def token(stage: Stage) -> None:
    """An answer has the token of the bundle's `acquire` as `Fencing-Token`."""
    owned = await stage.serving()
    _has_token(await stage.serves(owned.key, "it is acquired"), str(owned.token))
    await stage.obeyed(stage.hook("release", owned.bundle))
    again = await stage.serving(bundle=owned.bundle)
    _has_token(await stage.serves(again.key, "it is acquired again"), str(again.token))


@check("moved")
async def moved(stage: Stage) -> None:
    """A key that another broker serves is answered as the sidecar says: 421, with its broker and urls."""
    bundle = stage.new_bundle()
    key = stage.key_in(bundle)

    async def elsewhere(asked: str, timeout_s: float) -> Claimed:
        raise Moved(OWNER, OWNER_URLS, bundle)

    stage.script.claim = elsewhere
    stage.note("answered claims with 421")
    answer = await _answered(stage, key, 421)
    said = answer.json()
    expect(isinstance(said, dict), "a JSON object", answer)
    for name, value in {"type": MOVED, "broker": OWNER, "urls": OWNER_URLS, "bundle": str(bundle)}.items():
        expect(said.get(name) == value, f"{name}: {value}", said.get(name))
    _is_problem(answer)


@check("not-serving")
async def not_serving(stage: Stage) -> None:
    """A key that no broker serves is answered as the sidecar says: 503, with its Retry-After."""
    key = stage.key_in(stage.new_bundle())

    async def nowhere(asked: str, timeout_s: float) -> Claimed:
        raise NotServing("no broker serves this key at the moment", RETRY_AFTER_S)

    stage.script.claim = nowhere
    stage.note(f"answered claims with 503, Retry-After: {RETRY_AFTER_S:g}")
    answer = await _answered(stage, key, 503)
    after = answer.headers.get("Retry-After")
    expect(after == f"{RETRY_AFTER_S:g}", f"Retry-After: {RETRY_AFTER_S:g}", f"Retry-After: {after}")
    _is_problem(answer)


@check("another-cluster")
async def another_cluster(stage: Stage) -> None:
    """A request for another cluster is refused as the sidecar says: 421. One for this cluster is served."""
    owned, own = await stage.serving(), header_of(CLUSTER)

    async def here(asked: str, timeout_s: float) -> Claimed:
        return Claimed(bundle=str(owned.bundle), token=str(owned.token), partition=owned.token.partition)

    await stage.taken_in()
    stage.script.claim = here
    earlier = header_of(ClusterIdentity(CLUSTER.cluster, "earlier", CLUSTER.generation - 1))
    for cluster in (own, CLUSTER.cluster, earlier):
        answer = await stage.probe(owned.key, cluster=cluster)
        expect(answer.status == 200, f"status 200 for {CLUSTER_HEADER}: {cluster}, in cluster {own}", answer)
    for cluster in ("another/0a1b2c3d4e5f-1/1", f"{CLUSTER.cluster}/another/{CLUSTER.generation}"):
        answer = await stage.probe(owned.key, cluster=cluster)
        stage.note(f"asked for {owned.key} with {CLUSTER_HEADER}: {cluster}: {answer}")
        expect(answer.status == 421, f"status 421 for {CLUSTER_HEADER}: {cluster}, in cluster {own}", answer)
        _is_problem(answer)
        said = answer.json()
        expect(isinstance(said, dict) and said.get("type") == ANOTHER_CLUSTER, f"type: {ANOTHER_CLUSTER}", said)
        shown = answer.headers.get(CLUSTER_HEADER)
        expect(shown == own, f"{CLUSTER_HEADER}: {own}", f"{CLUSTER_HEADER}: {shown}")


@check("waits")
async def waits(stage: Stage) -> None:
    """A request waits while the sidecar waits for its bundle, and is served when the bundle has come."""
    bundle = stage.new_bundle()
    key, arrived, told = stage.key_in(bundle), asyncio.Event(), asyncio.Event()
    hook, token = stage.acquiring(bundle)

    async def coming(asked: str, timeout_s: float) -> Claimed:
        arrived.set()
        await told.wait()
        return Claimed(bundle=str(bundle), token=str(token), partition=token.partition)

    await stage.taken_in()
    stage.script.claim = coming
    asking = asyncio.create_task(stage.probe(key, timeout_s=2 * PROBE_S))
    try:
        async with asyncio.timeout(stage.options.patience_s):
            await asyncio.wait({asking, came := asyncio.create_task(arrived.wait())}, return_when="FIRST_COMPLETED")
        came.cancel()
        expect(arrived.is_set(), f"the service asks for /v1/claims/… of {key}", stage.recent_requests)
        await stage.obeyed(hook)
    finally:
        told.set()
    stage.note("answered the claim with 200")
    answer = await asking
    expect(answer.status == 200, f"status 200 for {key}: its bundle has come while the request waited", answer)
    asked = unquote(stage.script.claims[-1])
    expect(Key.parse(asked) == key, f"/v1/claims/ with {key.full_name}, or without persistent://", asked)


@check("release-waits")
async def release_waits(stage: Stage) -> None:
    """A `release` is answered after the requests that were in progress."""
    if stage.options.slow is None:
        raise Skipped("it needs --slow")
    for head_start_s in HEAD_STARTS_S:
        owned = await stage.serving()
        asking = asyncio.create_task(stage.probe(owned.key, stage.options.slow, timeout_s=2 * stage.options.patience_s))
        await asyncio.sleep(head_start_s)
        released = await stage.obeyed(stage.hook("release", owned.bundle), "while a slow request was in progress")
        slow = await asking
        stage.note(f"the slow request was answered {slow.status}, {slow.came_s - slow.sent_s:.2f} s after it was sent")
        if slow.status == 200:
            took_s = slow.came_s - slow.sent_s
            expect(took_s >= SLOW_S, f"--slow takes at least {SLOW_S:g} s", f"{took_s:.2f} s: give another URL")
            after_s = released.came_s - slow.sent_s
            expect(
                after_s >= SLOW_S, "`release` is answered after the request that was in progress",
                f"an answer to `release` {after_s:.2f} s after that request was sent, which takes {SLOW_S:g} s",
            )  # fmt: skip
            return
    raise Failure("status 200 for a slow request that began before the release", f"{len(HEAD_STARTS_S)} other answers")


@check("after-release")
async def after_release(stage: Stage) -> None:
    """No request is admitted after `release` was answered, however many come."""
    owned = await stage.serving()
    answers = list[Answer]()
    over = asyncio.Event()

    async def client() -> None:
        while not over.is_set():
            answers.append(await stage.probe(owned.key))

    async with asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(client())
        try:
            await asyncio.sleep(0.1)
            released = await stage.obeyed(stage.hook("release", owned.bundle), f"while {CLIENTS} clients asked")
            await asyncio.sleep(0.3)
        finally:
            over.set()
    late = [answer for answer in answers if answer.sent_s > released.came_s]
    served = [answer for answer in late if answer.status == 200]
    expect(not served, "no 200 for requests that were sent after `release` was answered", f"{len(served)}")
    await stage.refuses(owned.key, "its bundle was released")


async def _answered(stage: Stage, key: Key, status: int) -> Answer:
    answer = await stage.probe(key)
    stage.note(f"asked for {key}: {answer}")
    expect(answer.status == status, f"status {status} for {key}, as the sidecar says", answer)
    return answer


def _has_token(answer: Answer, token: str) -> None:
    shown = answer.headers.get(TOKEN_HEADER)
    expect(shown == token, f"{TOKEN_HEADER}: {token}", f"{TOKEN_HEADER}: {shown}")


def _is_problem(answer: Answer) -> None:
    kind = answer.headers.get("Content-Type", "")
    expect(kind.partition(";")[0].strip() == PROBLEM_TYPE, f"Content-Type: {PROBLEM_TYPE}", f"Content-Type: {kind}")


# --- how a service stops

HANGS_S = 1.0
"""The time for which bundles are still moving away after the service asked to leave."""
EXIT_S = 10.0


@check("leave", stops=True)
async def leave(stage: Stage) -> None:
    """After SIGTERM the service ends its session, serves until that is answered, and exits with 0 within 10 s."""
    released, kept = await stage.serving(), await stage.serving()
    stage.service.ask_to_stop()
    stage.note("sent SIGTERM to the command")
    asked = await stage.script.until(stage.script.leaving.is_set, stage.options.patience_s)
    expect(asked, "DELETE of the session", f"{stage.recent_requests}; {stage.how_it_ended}")
    stage.note(f"left the DELETE of the session unanswered for {HANGS_S:g} s")
    await asyncio.sleep(HANGS_S)
    await stage.taken_in()
    await stage.serves(kept.key, "the session lasts until its DELETE is answered")
    await stage.obeyed(stage.hook("release", released.bundle), "before the DELETE was answered")
    await stage.refuses(released.key, "its bundle was released")
    await stage.serves(kept.key, "the session lasts until its DELETE is answered")
    await stage.obeyed(stage.hook("release", kept.bundle), "before the DELETE was answered")
    stage.script.may_leave.set()
    stage.note("answered the DELETE with 200")
    expect(await stage.service.exited(EXIT_S), f"the process exits within {EXIT_S:g} s", stage.how_it_ended)
    expect(stage.service.exit_code == 0, "the process exits with 0", stage.how_it_ended)
