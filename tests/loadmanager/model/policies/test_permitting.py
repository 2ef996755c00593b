"""Who may take an unassigned bundle under policies, and what refuses the others."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loadmanager.model.policies.model import (
    BrokerPolicy,
    BundlePolicy,
    FailureDomain,
    IsolationPolicy,
    NamespacePolicy,
    Policies,
)
from loadmanager.model.registration import Peer, Registration
from loadmanager.settings import Settings
from loadmanager.strategies.placement.permitting import Permitting, holdings_of, laid_down
from loadmanager.strategies.placement.placement import Candidate
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId
from tests.loadmanager.small_world import A, B, Hand, replica, virtually
from tests.simulator.world import World

NAMES = ("a:1", "b:1", "c:1", "d:1")
PAY = Bundle("pay/x", 0, (1 << 32) - 1)
SHOP = Bundle("shop/x", 0, (1 << 32) - 1)


def permitting(
    policies: Policies,
    *,
    settings: Settings | None = None,
    held: Mapping[str, Mapping[str, int]] = {},
    full: str = "",
    versions: Mapping[str, str] = {},
) -> Permitting:
    peers = [Peer(BrokerId(name, 1), Registration(version=versions.get(name, "1.0"))) for name in NAMES]
    candidates = [
        Candidate(peer.broker, bundles=1, max_bundles=1 if peer.broker.name == full else None) for peer in peers
    ]

    def holdings(namespace: str) -> Mapping[BrokerId, int]:
        return {BrokerId(name, 1): count for name, count in held.get(namespace, {}).items()}

    return Permitting(policies, peers, candidates, settings or Settings(), holdings)


def names(found: Permitting, bundle: Bundle) -> list[str]:
    return [each.broker.name for each in found.of(bundle).candidates]


def test_without_policies_all_may_and_share_one_answer():
    found = permitting(Policies())
    assert names(found, PAY) == list(NAMES)
    assert found.of(PAY) is found.of(SHOP)


def test_isolation_refuses_by_name():
    isolated = Policies(isolation={"pay": IsolationPolicy(namespaces=("pay/.*",), primary=("a:1", "b:1"))})
    found = permitting(isolated)
    assert names(found, PAY) == ["a:1", "b:1"]
    assert found.of(PAY).why == "isolation policy 'pay' refuses c:1, d:1"
    assert found.of(SHOP).why == "reserved by isolation policy 'pay' refuses a:1, b:1"
    nowhere = Policies(isolation={"pay": IsolationPolicy(namespaces=("pay/.*",), primary=("x:1",))})
    refused = permitting(nowhere).of(PAY)
    assert refused.candidates == ()
    assert refused.explain("no broker is registered") == "isolation policy 'pay' refuses a:1, b:1, c:1 and 1 more"


def test_pins_exclusions_and_quarantine_hold_for_lookups_as_well():
    found = permitting(
        Policies(
            bundles={
                PAY: BundlePolicy(pin="c:1"),
                SHOP: BundlePolicy(exclude=("a:1",)),
                Bundle("q/x", 0, 9): BundlePolicy(quarantined="3 died"),
            }
        )
    )
    assert names(found, PAY) == ["c:1"]
    assert names(found, SHOP) == ["b:1", "c:1", "d:1"]
    assert names(found, Bundle("q/x", 3, 4)) == []
    assert found.of(Bundle("q/x", 3, 4)).why.startswith("quarantined: 3 died refuses a:1")


def test_a_bundle_pinned_to_a_broker_that_is_away_goes_elsewhere():
    assert names(permitting(Policies(bundles={PAY: BundlePolicy(pin="gone:1")})), PAY) == list(NAMES)


def test_a_kept_drain_and_a_limit_are_those_of_the_candidate():
    policies = Policies(brokers={"a:1": BrokerPolicy(drain=True), "b:1": BrokerPolicy(max_bundles=1)})
    by_name = {each.broker.name: each for each in permitting(policies).candidates}
    assert by_name["a:1"].draining
    assert by_name["b:1"].max_bundles == 1
    found = permitting(policies)
    assert found.closed(BrokerId("a:1", 1)) == "a:1 is drained"
    assert found.closed(BrokerId("b:1", 1)) == "b:1 has 1 bundles of at most 1"
    assert found.closed(BrokerId("c:1", 1)) == ""
    assert laid_down(Policies(), Candidate(A, max_bundles=9)).max_bundles == 9


def test_newcomers_go_to_the_newest_release():
    found = permitting(Policies(), settings=Settings(prefer_later_versions=True), versions={"d:1": "1.1"})
    assert names(found, PAY) == ["d:1"]


# --- anti-affinity


def apart(**more: object) -> Policies:
    group = NamespacePolicy(anti_affinity_group="db")
    return Policies(namespaces=dict.fromkeys(("db/one", "db/two", "db/three"), group), **more)  # type: ignore[arg-type]


ONE = Bundle("db/one", 0, 9)


def test_a_group_is_spread_over_brokers():
    found = permitting(apart(), held={"db/two": {"a:1": 3, "b:1": 1}, "db/three": {"a:1": 1}})
    assert names(found, ONE) == ["c:1", "d:1"]
    assert found.of(ONE).why == "anti-affinity group 'db' refuses a:1, b:1"


def test_the_namespaces_own_bundles_do_not_count():
    assert names(permitting(apart(), held={"db/one": {"a:1": 3}}), ONE) == list(NAMES)


def test_a_group_is_spread_over_failure_domains_first():
    policies = apart(
        failure_domains={"r1": FailureDomain(brokers=("a:1", "b:1")), "r2": FailureDomain(brokers=("c:1", "d:1"))}
    )
    held = {"db/two": {"a:1": 1}}
    assert names(permitting(policies, held=held), ONE) == ["c:1", "d:1"]
    assert names(permitting(apart(), held=held), ONE) == ["b:1", "c:1", "d:1"]


def test_a_full_broker_does_not_stand_in_the_way_of_a_group():
    held = {"db/two": {"a:1": 1, "b:1": 1, "c:1": 1}}
    assert names(permitting(apart(), held=held, full="d:1"), ONE) == ["a:1", "b:1", "c:1"]


def test_what_was_just_given_away_counts():
    found = permitting(apart(), held={})
    found.gave(Bundle("db/two", 0, 9), BrokerId("a:1", 1))
    assert "a:1" not in names(found, ONE)


@virtually
async def test_holdings_count_moves_in_flight_as_done(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        first, second, _ = await hand.create(3)
        await hand.assign(first, A)
        await hand.assign(second, A)
        await hand.accept(Action.TRANSFER, second, A, B)
        assert holdings_of(channel.table, first.namespace) == {A: 1, B: 1}
        assert holdings_of(channel.table, "no/such") == {}


def test_policies_are_not_changed():
    policies = apart()
    before = msgspec.json.encode(policies.namespaces)
    permitting(policies).of(ONE)
    assert msgspec.json.encode(policies.namespaces) == before
