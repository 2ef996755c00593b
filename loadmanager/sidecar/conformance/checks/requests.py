"""What a service answers to its clients, and what it asks its sidecar for them."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

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
from loadmanager.sidecar.conformance.checking import check
from loadmanager.sidecar.conformance.hook import Answer
from loadmanager.sidecar.conformance.script import CLUSTER
from loadmanager.sidecar.conformance.stage import PROBE_S, WIDTH, Failure, Skipped, Stage, expect
from loadmanager.sidecar.wire import Claimed
from statechannel.law.bundle import FULL_UPPER, Bundle, Key
from statechannel.law.partition import ClusterIdentity

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
    """A key that nobody serves is answered as the sidecar says: 503, with its Retry-After."""
    key = stage.key_in(stage.new_bundle())

    async def nowhere(asked: str, timeout_s: float) -> Claimed:
        raise NotServing("nobody serves this key at the moment", RETRY_AFTER_S)

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
