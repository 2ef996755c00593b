"""Policies as documents: what was written holds for every reader, in the order in which it counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.errors import Conflict, Invalid, NotFound
from loadmanager.model.policies.codec import decode, encode, fold, key_of, named
from loadmanager.model.policies.model import (
    NO_POLICIES,
    BrokerPolicy,
    BundlePolicy,
    ClusterPolicy,
    FailureDomain,
    IsolationPolicy,
    Kind,
    NamespacePolicy,
    Policies,
    Policy,
)
from loadmanager.model.policies.validation import Known
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from tests.loadmanager.small_world import process, virtually
from tests.simulator.world import World

BUNDLE = Bundle("shop/x", 0, (1 << 32) - 1)
KNOWN = Known(("a:1", "b:1"), ("shop/x",), lambda _: (BUNDLE,), Settings())
PAY = IsolationPolicy(namespaces=("pay/.*",), primary=("a:1",))


@asynccontextmanager
async def store(world: World, name: str = "a:1") -> AsyncGenerator[PolicyStore]:
    log = world.log_client(process(world, name))
    policies = PolicyStore(log, lambda: KNOWN, wall_ms=world.wall_ms, nonce=name)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(policies.run())
        await policies.wait_ready(10)
        yield policies
        running.cancel()


@virtually
async def test_a_document_of_each_kind_is_folded_and_read_again(world: World):
    written = {
        (Kind.ISOLATION, "pay"): PAY,
        (Kind.FAILURE_DOMAIN, "rack"): FailureDomain(brokers=("a:1",)),
        (Kind.NAMESPACE, "shop/x"): NamespacePolicy(weight=2.0, settings={"bundle_rest_s": 5}),
        (Kind.BUNDLE, str(BUNDLE)): BundlePolicy(pin="a:1"),
        (Kind.BROKER, "b:1"): BrokerPolicy(max_bundles=7, capacity={"cpu": 3}),
        (Kind.CLUSTER, "cluster"): ClusterPolicy(paused=True, reason="release night"),
    }
    async with store(world) as policies:
        assert policies.current() == NO_POLICIES
        for (kind, name), policy in written.items():
            await policies.put(kind, name, policy, author="ann", force=True)
        found = policies.current()
    assert found.isolation == {"pay": PAY}
    assert found.bundles == {BUNDLE: BundlePolicy(pin="a:1")}
    assert (found.cluster.paused, found.revision) == (True, policies.documents.revision)
    async with store(world, "later") as again:
        assert again.current() == found
        assert again.current() is again.current(), "folded once"


@virtually
async def test_nobody_overwrites_what_he_has_not_seen(world: World):
    async with store(world) as one, store(world, "b:1") as other:
        first = await one.put(Kind.ISOLATION, "pay", PAY, seen=0, author="ann")
        assert first.version.version == 1
        with pytest.raises(Conflict, match="version 1 by ann"):
            await other.put(Kind.ISOLATION, "pay", PAY, seen=0, author="ben")
        await other.delete(Kind.ISOLATION, "pay", seen=1, author="ben", reason="done")
        with pytest.raises(NotFound):
            await other.delete(Kind.ISOLATION, "pay", author="ben")
        assert [each.author for each in other.history(Kind.ISOLATION, "pay")] == ["ann", "ben"]
        assert other.at(first.version.offset).isolation == {"pay": PAY}
        assert not other.current().isolation


@virtually
async def test_what_is_refused_is_not_written(world: World):
    async with store(world) as policies:
        with pytest.raises(Invalid):
            await policies.put(Kind.ISOLATION, "pay", msgspec.structs.replace(PAY, primary=()), author="ann")
        nobody = msgspec.structs.replace(PAY, primary=("x:1",))
        with pytest.raises(Conflict):
            await policies.put(Kind.ISOLATION, "pay", nobody, author="ann")
        assert policies.documents.revision == -1
        forced = await policies.put(Kind.ISOLATION, "pay", nobody, author="ann", reason="they come", force=True)
        assert forced.version.reason.startswith("they come - forced by ann: isolation policy 'pay': no registered")
        assert forced.forced != ()


@virtually
async def test_a_change_keeps_what_others_set_and_deletes_what_says_nothing(world: World):
    def weighing(before: NamespacePolicy) -> NamespacePolicy:
        return msgspec.structs.replace(before, weight=2.0)

    def grouping(before: NamespacePolicy) -> NamespacePolicy:
        return msgspec.structs.replace(before, anti_affinity_group="db")

    async with store(world) as one, store(world, "b:1") as other:
        both = (
            one.change(Kind.NAMESPACE, "shop/x", weighing, author="ann"),
            other.change(Kind.NAMESPACE, "shop/x", grouping, author="ben"),
        )
        await asyncio.gather(*both)
        last = await one.change(Kind.NAMESPACE, "shop/x", weighing, author="ann")
        assert last is None, "it was so already"
        assert one.current_of(Kind.NAMESPACE, "shop/x") == NamespacePolicy(anti_affinity_group="db", weight=2.0)
        gone = await one.change(Kind.NAMESPACE, "shop/x", lambda _: NamespacePolicy(), author="ann")
        assert gone is not None
        assert gone.version.value is None
        assert await one.change(Kind.NAMESPACE, "shop/x", lambda _: NamespacePolicy(), author="ann") is None
        with pytest.raises(Invalid):
            await one.change(Kind.NAMESPACE, "shop/x", lambda _: NamespacePolicy(weight=-1), author="ann")


@virtually
async def test_listeners_are_told_what_holds_now_and_after_each_change(world: World):
    told: list[Policies] = []
    async with store(world) as policies:
        policies.on_change(told.append)
        await policies.put(Kind.BROKER, "a:1", BrokerPolicy(paused=True), author="ann")
        await policies.delete(Kind.BROKER, "a:1", author="ann")
    assert [sorted(each.brokers) for each in told] == [[], ["a:1"], []]


def test_a_document_whose_key_names_another_kind_holds_for_nothing():
    assert fold({"broker/a:1": PAY, "isolation/pay": PAY}, 3) == Policies(isolation={"pay": PAY}, revision=3)


def test_keys_are_kind_and_name():
    assert named(key_of(Kind.BUNDLE, str(BUNDLE))) == (Kind.BUNDLE, str(BUNDLE))


@virtually
async def test_what_is_proposed_is_seen_without_being_written(world: World):
    async with store(world) as policies:
        await policies.put(Kind.BROKER, "a:1", BrokerPolicy(paused=True), author="ann")
        before = policies.current()
        assert policies.proposed(Kind.ISOLATION, "pay", PAY).isolation == {"pay": PAY}
        assert policies.proposed(Kind.BROKER, "a:1", None).brokers == {}
        assert policies.current() is before


@virtually
async def test_what_nobody_can_work_with_is_not_in_force_and_what_was_before_stays(world: World):
    """Written past every check: by another release, or by hand."""
    bad: list[tuple[str, Policy]] = [
        ("isolation/pay", IsolationPolicy(namespaces=("pay/(",), primary=("a:1",))),
        ("isolation/pay", IsolationPolicy(namespaces=("(?!pay/x).*",), primary=("a:1",))),
        ("isolation/pay", IsolationPolicy(namespaces=(), primary=("a:1",), min_available=-3)),
        ("bundle/garbage", BundlePolicy(pin="a:1")),
        (f"bundle/{BUNDLE}", BundlePolicy(settings={"bundle_rest_s": "soon"})),
        (f"bundle/{BUNDLE}", BundlePolicy(settings={"of_tomorrow": 1})),
        ("namespace/shop/x", NamespacePolicy(weight=0)),
        ("broker/b:1", BrokerPolicy(capacity={"cpu": 0})),
    ]
    async with store(world) as policies:
        await policies.put(Kind.ISOLATION, "pay", PAY, author="ann")
        for key, policy in bad:
            await policies.documents.put(key, policy, seen=None, author="another", reason="")
        found = policies.current()
        assert found == Policies(isolation={"pay": PAY}, revision=found.revision)
        assert [each.readable for each in policies.history(Kind.ISOLATION, "pay")] == [True, False, False, False]
        with pytest.raises(Conflict, match=r"cannot use version 4 .*min_available|namespaces is empty"):
            await policies.change(Kind.ISOLATION, "pay", lambda _: PAY, author="ann")
        await policies.put(Kind.ISOLATION, "pay", PAY, author="ann")
        assert policies.get(Kind.ISOLATION, "pay").readable


@virtually
async def test_of_two_contradicting_policies_one_is_refused_even_if_read_late(world: World):
    first = IsolationPolicy(namespaces=("shop/.*",), primary=("a:1",))
    second = IsolationPolicy(namespaces=("shop/.*",), primary=("b:1",))
    async with store(world) as one, store(world, "b:1") as other:
        await one.put(Kind.ISOLATION, "one", first, author="ann")
        with pytest.raises(Conflict, match="both claim shop/x"):
            await other.put(Kind.ISOLATION, "other", second, author="ben")


@virtually
async def test_who_replaces_a_document_is_told_what_it_said_besides(world: World):
    async with store(world) as policies:
        await policies.put(Kind.BROKER, "a:1", BrokerPolicy(drain=True, max_bundles=3), author="ann")
        written = await policies.put(Kind.BROKER, "a:1", BrokerPolicy(max_bundles=4), author="ben")
        assert written.notes == ('version 1 by ann also had {"drain":true}, which is gone now',)
        assert (await policies.put(Kind.BROKER, "a:1", BrokerPolicy(max_bundles=5), author="ben")).notes == ()


@virtually
async def test_a_policy_that_somebody_needs_is_deleted_only_by_force(world: World):
    shop = IsolationPolicy(namespaces=("shop/.*",), primary=("a:1",))
    async with store(world) as policies:
        await policies.put(Kind.ISOLATION, "shop", shop, author="ann")
        await policies.put(Kind.ISOLATION, "all", IsolationPolicy(("x/.*",), (".*",)), author="ann")
        with pytest.raises(Conflict, match="without isolation policy 'shop' no broker may own shop/x"):
            await policies.delete(Kind.ISOLATION, "shop", author="ann")
        gone = await policies.delete(Kind.ISOLATION, "shop", author="ann", force=True)
        assert gone.version.reason.startswith("forced by ann: without isolation policy 'shop'")


def test_what_a_stored_policy_sets_and_is_no_setting_any_more_is_ignored():
    for policy in (NamespacePolicy, BundlePolicy):
        stored = encode(policy(settings={"split_hits": 9, "split_max_keys": 7}))
        assert decode(stored) == policy(settings={"split_max_keys": 7})
