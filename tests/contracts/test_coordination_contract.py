"""What `ports.Coordination` promises, sentence by sentence, on every adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from statechannel.errors import CoordinationUnavailable, Deposed, Fenced, ForeignCluster
from statechannel.law.record import BrokerId
from statechannel.ports import Connection, Coordination, Identity, Leadership, Member

T = TypeVar("T")

A, B = "broker-a:8080", "broker-b:8080"


@pytest.fixture
async def client(coordinations) -> Coordination:
    return await coordinations.open()


@pytest.fixture
async def other(coordinations, client) -> Coordination:
    """A second client, as of another process."""
    return await coordinations.open()


async def started(client: Coordination, name: str, data: bytes = b"") -> BrokerId:
    broker = await client.start_incarnation(name, above=0)
    await client.register(broker, data)
    return broker


async def leading(client: Coordination, name: str) -> Leadership:
    leadership = await client.campaign(await started(client, name))
    assert leadership is not None
    return leadership


# --- the cluster
@pytest.mark.slow
async def test_first_caller_ties_the_root_and_its_whole_cluster_may_repeat_it(client, other):
    await client.identify("production", "log-1")
    await client.identify("production", "log-1")
    await other.identify("production", "log-1")


@pytest.mark.parametrize(("cluster", "log"), [("staging", "log-1"), ("production", "log-2")])
async def test_another_cluster_or_log_is_refused_with_both_names(client, other, cluster, log):
    await client.identify("production", "log-1")
    with pytest.raises(ForeignCluster, match="production"):
        await other.identify(cluster, log)
    await other.identify("production", "log-1")


async def test_an_identity_can_be_read_and_reading_ties_nothing(client, other):
    assert await client.identity() is None
    assert await client.identity() is None
    await other.identify("production", "log-1")
    root = await client.identify("production", "log-1")
    assert await client.identity() == Identity("production", "log-1", root)


async def test_of_two_that_identify_at_once_one_wins(client, other):
    outcomes = await asyncio.gather(client.identify("one", "log"), other.identify("two", "log"), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ForeignCluster", "str"]


async def test_a_root_has_one_identity_whoever_asks(client, other):
    drawn = await asyncio.gather(client.identify("one", "log"), other.identify("one", "log"))
    assert drawn[0] == drawn[1] != ""
    assert await other.identify("one", "log", drawn[0]) == drawn[0]


async def test_the_root_that_the_log_names_is_not_made_where_it_is_not(client, other):
    with pytest.raises(ForeignCluster, match=r"lost-root.*is empty"):
        await client.identify("one", "log", "lost-root")
    assert await other.identity() is None, "nothing was made"
    root = await other.identify("one", "log")
    with pytest.raises(ForeignCluster, match=f"(?s)lost-root.*{root}"):
        await client.identify("one", "log", "lost-root")


# --- incarnations
async def test_each_start_has_a_greater_number(client, other):
    first = await client.start_incarnation(A, above=0)
    second = await other.start_incarnation(A, above=0)
    assert first.name == second.name == A
    assert 0 < first.incarnation < second.incarnation


async def test_a_number_exceeds_what_the_channel_shows(client):
    assert (await client.start_incarnation(A, above=41)).incarnation > 41
    again = await client.start_incarnation(A, above=3)
    assert again.incarnation > 42


async def test_numbers_of_different_names_are_independent(client):
    await client.start_incarnation(A, above=1_000)
    assert (await client.start_incarnation(B, above=0)).incarnation < 1_000


async def test_starts_at_the_same_time_get_different_numbers(client, other):
    starts = [c.start_incarnation(A, above=0) for c in (client, other) for _ in range(8)]
    numbers = [broker.incarnation for broker in await asyncio.gather(*starts)]
    assert len(set(numbers)) == 16


async def test_a_number_survives_everybody_leaving(coordinations, client):
    before = await client.start_incarnation(A, above=7)
    await client.close()
    after = await (await coordinations.open()).start_incarnation(A, above=0)
    assert after.incarnation > before.incarnation


# --- registering
async def test_everybody_sees_a_registered_broker_with_its_data(client, other, until):
    broker = await started(client, A, b"data of a")
    for reader in (client, other):
        await until(reader, lambda reader=reader: reader.members.get(A) == Member(broker, b"data of a"))


async def test_registering_again_replaces_the_data(client, other, until):
    broker = await started(client, A, b"old")
    await client.register(broker, b"new")
    await until(other, lambda: other.members.get(A) == Member(broker, b"new"))


async def test_who_registers_again_and_again_is_seen_at_last_as_it_registered_last(client, other, until):
    broker = await started(client, A)
    for number in range(30):  # faster than watches follow
        await client.register(broker, b"%d" % number)
    for reader in (client, other):
        await until(reader, lambda reader=reader: reader.members.get(A) == Member(broker, b"29"))


async def test_a_proof_beside_a_registration_does_not_bring_back_the_former_data(coordinations, client):
    """Other brokers read a registration once, so what it says must not be an earlier one's for a moment."""
    broker = await started(client, A, b"first")
    for number in range(5):
        await asyncio.gather(client.register(broker, b"%d" % number), client.prove(broker), client.prove(broker))
        reader = await coordinations.open()
        assert reader.members[A].data == b"%d" % number


async def test_a_client_may_register_several_names(client, other, until):
    a, b = await started(client, A, b"a"), await started(client, B, b"b")
    await until(other, lambda: dict(other.members) == {A: Member(a, b"a"), B: Member(b, b"b")})


async def test_a_stale_incarnation_cannot_register_and_changes_nothing(client, other, until):
    stale = await started(client, A, b"stale")
    current = await started(other, A, b"current")
    with pytest.raises(Fenced, match=A):
        await client.register(stale, b"again")
    await until(client, lambda: client.members.get(A) == Member(current, b"current"))


async def test_of_two_processes_of_one_name_the_second_fences_the_first(client, other, until):
    first = await started(client, A, b"first")
    await client.prove(first)
    second = await started(other, A, b"second")
    with pytest.raises(Fenced):
        await client.prove(first)
    await other.prove(second)
    await until(client, lambda: A in client.members and client.members[A].broker == second)


async def test_the_first_process_leaving_does_not_take_the_seconds_node_along(coordinations, client, other, until):
    await started(client, A, b"first")
    second = await started(other, A, b"second")
    await until(other, lambda: A in other.members and other.members[A].broker == second)
    await client.close()
    witness = await started(await coordinations.open(), B)  # seen after whatever the first one's leaving did
    await until(other, lambda: B in other.members and other.members[B].broker == witness)
    assert other.members[A] == Member(second, b"second")


async def test_unregistering_removes_the_node_and_is_idempotent(client, other, until):
    broker = await started(client, A)
    await until(other, lambda: A in other.members)
    await client.unregister(broker)
    await client.unregister(broker)
    await until(other, lambda: A not in other.members)


async def test_a_stale_incarnation_does_not_unregister_its_successor(client, other, until):
    stale = await started(client, A)
    current = await started(other, A)
    await client.unregister(stale)
    await other.prove(current)
    await until(client, lambda: A in client.members and client.members[A].broker == current)


# --- proofs
async def test_a_current_incarnation_proves_itself_again_and_again(client):
    broker = await started(client, A)
    for _ in range(5):
        await client.prove(broker)


async def test_a_proof_fails_as_soon_as_a_newer_incarnation_has_started(client, other):
    broker = await started(client, A)
    await other.start_incarnation(A, above=0)  # not even registered yet
    with pytest.raises(Fenced):
        await client.prove(broker)


async def test_proof_after_the_session_ended_registers_under_the_same_number(coordinations, client, other, until):
    broker = await started(client, A, b"first")
    await client.register(broker, b"last data")
    await until(other, lambda: A in other.members)
    await coordinations.expire(client)
    await until(other, lambda: A not in other.members)
    async with asyncio.timeout(60):
        await prove_when_connected(client, broker)
    await until(other, lambda: other.members.get(A) == Member(broker, b"last data"))


async def prove_when_connected(client: Coordination, broker: BrokerId) -> None:
    await when_connected(lambda: client.prove(broker))


async def when_connected(ask: Callable[[], Awaitable[T]]) -> T:
    """A session that ended may leave the link suspended for a moment."""
    while True:
        try:
            return await ask()
        except CoordinationUnavailable:
            await asyncio.sleep(0.02)


# --- raising
async def test_a_raised_incarnation_is_fenced_everywhere(client, other):
    victim = await started(other, A)
    leadership = await leading(client, B)
    await client.raise_incarnation(victim, leadership.epoch)
    with pytest.raises(Fenced):
        await other.prove(victim)
    with pytest.raises(Fenced):
        await other.register(victim, b"")
    with pytest.raises(Fenced):
        await other.campaign(victim)


async def test_raising_twice_is_success_and_does_not_hit_the_successor(client, other):
    victim = await started(other, A)
    leadership = await leading(client, B)
    await client.raise_incarnation(victim, leadership.epoch)
    successor = await started(other, A)
    await client.raise_incarnation(victim, leadership.epoch)
    await other.prove(successor)


async def test_a_number_that_somebody_else_has_raised_is_success_too(client, other):
    victim = await started(other, A)
    successor = await started(other, A)
    leadership = await leading(client, B)
    await client.raise_incarnation(victim, leadership.epoch)
    await other.prove(successor)


async def test_a_start_after_a_raise_has_a_greater_number_still(client, other):
    victim = await started(other, A)
    leadership = await leading(client, B)
    await client.raise_incarnation(victim, leadership.epoch)
    successor = await started(other, A)
    assert successor.incarnation > victim.incarnation
    await other.prove(successor)


async def test_a_deposed_leader_cannot_raise_and_changes_nothing(client, other):
    victim = await started(other, A)
    old = await leading(client, B)
    await client.resign(old)
    new = await other.campaign(victim)
    assert new is not None
    with pytest.raises(Deposed):
        await client.raise_incarnation(victim, old.epoch)
    await other.prove(victim)


async def test_an_epoch_that_never_was_cannot_raise(client, other):
    victim = await started(other, A)
    leadership = await leading(client, B)
    with pytest.raises(Deposed):
        await client.raise_incarnation(victim, leadership.epoch + 1)
    await other.prove(victim)


# --- the election
async def test_one_leads_and_everybody_sees_who(client, other, until):
    leadership = await leading(client, A)
    assert leadership.leader.name == A
    assert await other.campaign(await started(other, B)) is None
    for reader in (client, other):
        await until(reader, lambda reader=reader: reader.leadership == leadership)


async def test_of_many_that_campaign_at_once_exactly_one_wins(coordinations):
    clients = [await coordinations.open() for _ in range(5)]
    brokers = [await started(c, f"broker-{i}:1") for i, c in enumerate(clients)]
    outcomes = await asyncio.gather(*(c.campaign(b) for c, b in zip(clients, brokers, strict=True)))
    assert sum(outcome is not None for outcome in outcomes) == 1


async def test_each_leadership_has_a_greater_epoch(client, other):
    candidate, rival = await started(client, A), await started(other, B)
    epochs: list[int] = []
    for turn in range(6):
        who, as_whom = ((client, candidate), (other, rival))[turn % 2]
        leadership = await who.campaign(as_whom)
        assert leadership is not None
        assert leadership.leader == as_whom
        epochs.append(leadership.epoch)
        await who.resign(leadership)
    assert epochs == sorted(set(epochs))
    assert epochs[0] > 0


async def test_epochs_go_on_growing_after_everybody_left(coordinations, client):
    before = await leading(client, A)
    await client.close()
    after = await leading(await coordinations.open(), A)
    assert after.epoch > before.epoch


async def test_a_stale_incarnation_cannot_campaign(client, other):
    stale = await started(client, A)
    current = await started(other, A)
    with pytest.raises(Fenced):
        await client.campaign(stale)
    assert await other.campaign(current) is not None


async def test_resigning_leaves_the_place_to_others_and_is_idempotent(client, other, until):
    leadership = await leading(client, A)
    await until(other, lambda: other.leadership == leadership)
    await client.resign(leadership)
    await client.resign(leadership)
    await until(other, lambda: other.leadership is None)
    assert await other.campaign(await started(other, B)) is not None


async def test_resigning_an_old_leadership_does_not_end_the_new_one(client, other, until):
    old = await leading(client, A)
    await client.resign(old)
    new = await client.campaign(old.leader)
    assert new is not None
    await client.resign(old)
    assert await other.campaign(await started(other, B)) is None
    await until(other, lambda: other.leadership == new)


async def test_any_client_can_evict_a_leader_once(client, other, until):
    leadership = await leading(client, A)
    assert await other.evict(leadership) is True
    assert await other.evict(leadership) is False
    await until(client, lambda: client.leadership is None)
    assert await other.campaign(await started(other, B)) is not None


async def test_evicting_an_old_leadership_does_not_hit_the_new_one(client, other, until):
    old = await leading(client, A)
    await client.resign(old)
    new = await client.campaign(old.leader)
    assert new is not None
    assert await other.evict(old) is False
    await until(other, lambda: other.leadership == new)


async def test_an_evicted_leader_keeps_its_registration(client, other, until):
    leadership = await leading(client, A)
    await other.evict(leadership)
    await client.prove(leadership.leader)
    await until(other, lambda: A in other.members and other.leadership is None)


# --- leases
LEASE = "channel-owner-0"


async def test_of_two_that_want_an_office_one_gets_it(client, other):
    outcomes = await asyncio.gather(
        client.claim(LEASE, await started(client, A)), other.claim(LEASE, await started(other, B))
    )
    assert sorted(outcomes) == [False, True]


async def test_of_many_that_claim_at_once_exactly_one_wins(coordinations):
    clients = [await coordinations.open() for _ in range(5)]
    brokers = [await started(c, f"broker-{i}:1") for i, c in enumerate(clients)]
    outcomes = await asyncio.gather(*(c.claim(LEASE, b) for c, b in zip(clients, brokers, strict=True)))
    assert sorted(outcomes) == [False] * 4 + [True]


async def test_everybody_sees_who_holds_an_office_and_is_told_of_changes(client, other, until):
    a = await started(client, A)
    assert await client.claim(LEASE, a)
    for reader in (client, other):
        await until(reader, lambda reader=reader: dict(reader.leases) == {LEASE: a})
    await client.vacate(LEASE, a)
    for reader in (client, other):
        await until(reader, lambda reader=reader: not reader.leases)


async def test_a_new_client_knows_who_holds_an_office(coordinations, client, until):
    a = await started(client, A)
    await client.claim(LEASE, a)
    newcomer = await coordinations.open()
    await until(newcomer, lambda: newcomer.leases.get(LEASE) == a)


async def test_offices_cannot_be_changed_by_their_reader(client, until):
    a = await started(client, A)
    await client.claim(LEASE, a)
    await until(client, lambda: LEASE in client.leases)
    with pytest.raises((TypeError, AttributeError)):
        client.leases["another"] = a


async def test_its_holder_may_claim_an_office_again_as_when_an_answer_was_lost(client, other):
    a, b = await started(client, A), await started(other, B)
    assert await client.claim(LEASE, a)  # as if this had not been heard
    assert await client.claim(LEASE, a)
    assert not await other.claim(LEASE, b)
    await client.vacate(LEASE, a)  # however often it was claimed
    assert await other.claim(LEASE, b)


async def test_a_claim_whose_caller_gave_up_can_be_made_again(client, other, until):
    a, b = await started(client, A), await started(other, B)
    unheard = asyncio.ensure_future(client.claim(LEASE, a))
    await asyncio.sleep(0)  # it is under way
    unheard.cancel()
    await asyncio.wait([unheard])
    assert await client.claim(LEASE, a)
    assert not await other.claim(LEASE, b)
    await until(other, lambda: other.leases.get(LEASE) == a)


async def test_an_older_incarnation_cannot_claim_and_changes_nothing(client, other, until):
    stale = await started(client, A)
    current = await started(other, A)
    with pytest.raises(Fenced, match=A):
        await client.claim(LEASE, stale)
    assert await other.claim(LEASE, current)
    with pytest.raises(Fenced, match=A):
        await client.claim(LEASE, stale)
    await until(client, lambda: client.leases.get(LEASE) == current)


async def test_a_holder_that_was_fenced_cannot_claim_again(client, other):
    stale = await started(client, A)
    assert await client.claim(LEASE, stale)
    await other.start_incarnation(A, above=0)
    with pytest.raises(Fenced):
        await client.claim(LEASE, stale)


async def test_a_vacated_office_is_free_at_once_and_vacating_is_idempotent(client, other):
    a, b = await started(client, A), await started(other, B)
    assert await client.claim(LEASE, a)
    await client.vacate(LEASE, a)
    assert await other.claim(LEASE, b)
    await client.vacate(LEASE, a)
    await client.vacate("a-lease-that-never-was", a)
    assert not await client.claim(LEASE, a)


async def test_vacating_somebody_elses_office_does_nothing(client, other, until):
    stale = await started(other, A)
    a, b = await started(client, A), await started(other, B)
    assert await client.claim(LEASE, a)
    await other.vacate(LEASE, b)
    await other.vacate(LEASE, stale)
    assert not await other.claim(LEASE, b)
    await until(other, lambda: other.leases.get(LEASE) == a)


async def test_a_fenced_holder_can_still_give_up_its_office(client, other):
    stale = await started(client, A)
    assert await client.claim(LEASE, stale)
    current = await started(other, A)
    await client.vacate(LEASE, stale)
    assert await other.claim(LEASE, current)


async def test_offices_are_independent_and_one_broker_may_hold_many(client, other, until):
    a, b = await started(client, A), await started(other, B)
    names = [f"channel-owner-{number}" for number in range(8)]
    assert all(await asyncio.gather(*(client.claim(name, a) for name in names)))
    assert await other.claim("another-lease", b)
    await client.vacate(names[3], a)
    assert await other.claim(names[3], b)
    expected = {**dict.fromkeys(names, a), names[3]: b, "another-lease": b}
    for reader in (client, other):
        await until(reader, lambda reader=reader: dict(reader.leases) == expected)


async def test_an_office_that_goes_to_and_fro_ends_as_the_last_claim_says(client, other, until):
    claimants = [(client, await started(client, A)), (other, await started(other, B))]
    for turn in range(20):  # faster than watches follow
        who, broker = claimants[turn % 2]
        assert await who.claim(LEASE, broker)
        if turn < 19:
            await who.vacate(LEASE, broker)
    for reader in (client, other):
        await until(reader, lambda reader=reader: reader.leases.get(LEASE) == claimants[1][1])


async def test_offices_are_not_the_lead(client, other):
    leadership = await leading(client, A)
    b = await started(other, B)
    assert await other.claim(LEASE, b)
    await client.resign(leadership)
    assert not await client.claim(LEASE, leadership.leader)
    await other.vacate(LEASE, b)
    assert await client.campaign(leadership.leader) is not None


async def test_closing_frees_an_office_at_once(client, other, until):
    await client.claim(LEASE, await started(client, A))
    b = await started(other, B)
    await until(other, lambda: LEASE in other.leases)
    await client.close()
    await until(other, lambda: LEASE not in other.leases)
    assert await other.claim(LEASE, b)


async def test_lease_of_an_unheard_holder_is_free_and_others_keep_theirs(coordinations, client, other, until):
    a, b = await started(client, A), await started(other, B)
    assert await client.claim(LEASE, a)
    assert await other.claim("another-lease", b)
    await until(other, lambda: len(other.leases) == 2)
    await coordinations.expire(client)
    await until(other, lambda: dict(other.leases) == {"another-lease": b})
    assert await other.claim(LEASE, b)


async def test_holder_that_lost_its_session_holds_nothing_until_it_claims_again(coordinations, client, other, until):
    a = await started(client, A)
    assert await client.claim(LEASE, a)
    await until(other, lambda: LEASE in other.leases)
    await coordinations.expire(client)
    await until(other, lambda: LEASE not in other.leases)
    async with asyncio.timeout(60):
        await prove_when_connected(client, a)
    for reader in (client, other):  # the proof brings the registration back, and nothing else
        await until(reader, lambda reader=reader: A in reader.members and LEASE not in reader.leases)
    assert await client.claim(LEASE, a)
    for reader in (client, other):
        await until(reader, lambda reader=reader: reader.leases.get(LEASE) == a)


async def test_client_that_lost_its_session_sees_what_others_hold_and_do(coordinations, client, other, until):
    a, b = await started(client, A), await started(other, B)
    assert await client.claim(LEASE, a)
    await coordinations.expire(client)
    assert await other.claim(LEASE, b)
    await until(client, lambda: client.leases.get(LEASE) == b)
    assert await other.claim("another-lease", b)
    await other.vacate(LEASE, b)
    await until(client, lambda: dict(client.leases) == {"another-lease": b})


async def test_a_closed_client_cannot_claim(client):
    a = await started(client, A)
    await client.close()
    with pytest.raises(CoordinationUnavailable):
        await client.claim(LEASE, a)


# --- the end of a session
async def test_closing_ends_registration_and_leadership_at_once(client, other, until):
    leadership = await leading(client, A)
    await until(other, lambda: A in other.members and other.leadership == leadership)
    await client.close()
    await until(other, lambda: A not in other.members and other.leadership is None)


async def test_unheard_session_loses_registration_and_leadership_but_no_number(coordinations, client, other, until):
    leadership = await leading(client, A)
    await until(other, lambda: A in other.members and other.leadership == leadership)
    await coordinations.expire(client)
    await until(other, lambda: A not in other.members and other.leadership is None)
    successor = await other.start_incarnation(A, above=0)
    assert successor.incarnation > leadership.leader.incarnation


async def test_a_leader_whose_session_ended_is_followed_under_a_greater_epoch(coordinations, client, other, until):
    old = await leading(client, A)
    candidate = await started(other, B)
    await until(other, lambda: other.leadership == old)
    await coordinations.expire(client)
    await until(other, lambda: other.leadership is None)
    new = await other.campaign(candidate)
    assert new is not None
    assert new.epoch > old.epoch


async def test_a_session_that_is_heard_lives_longer_than_its_time_out(coordinations, client, other, until):
    broker = await started(client, A)
    await until(other, lambda: A in other.members)
    vanished = asyncio.Event()
    other.on_change(lambda: vanished.set() if A not in other.members else None)
    with pytest.raises(TimeoutError):  # the claim is that nothing happens in this time
        await asyncio.wait_for(vanished.wait(), 1.5 * coordinations.session_timeout_s)
    await client.prove(broker)


async def test_one_session_ending_leaves_the_others_alone(coordinations, client, other, until):
    await started(client, A)
    survivor = await started(other, B)
    await until(other, lambda: {A, B} <= other.members.keys())
    await coordinations.expire(client)
    await until(other, lambda: A not in other.members)
    assert other.members[B].broker == survivor


# --- a loop that hangs
async def test_abandoning_ends_registration_leadership_and_leases_of_one_alone(coordinations, client, other, until):
    leadership = await leading(client, A)
    assert await client.claim(LEASE, leadership.leader)
    survivor = await started(other, B)
    await until(other, lambda: {A, B} <= other.members.keys() and other.leadership == leadership and other.leases)
    coordinations.abandon(client)
    await until(other, lambda: A not in other.members and other.leadership is None and not other.leases)
    assert other.members[B].broker == survivor
    assert await other.campaign(survivor) is not None


async def test_who_abandoned_its_session_never_acts_again_under_its_old_number(coordinations, client, other, until):
    broker = await started(client, A)
    await until(other, lambda: A in other.members)
    coordinations.abandon(client)
    for _ in range(2):  # at once, and when the session is over
        attempts = (client.prove(broker), client.register(broker, b""), client.campaign(broker))
        for attempt in (*attempts, client.claim(LEASE, broker)):
            with pytest.raises(Fenced, match=A):
                await attempt
        await until(other, lambda: A not in other.members)
    await client.unregister(broker)
    await client.close()


async def test_after_it_was_abandoned_a_client_goes_on_with_the_next_incarnation(coordinations, client, other, until):
    old = await leading(client, A)
    await until(other, lambda: A in other.members)
    coordinations.abandon(client)
    coordinations.abandon(client)
    await until(other, lambda: A not in other.members)
    async with asyncio.timeout(60):
        new = await when_connected(lambda: client.start_incarnation(A, above=0))
        assert new.incarnation > old.leader.incarnation
        await when_connected(lambda: client.register(new, b"new"))
        await when_connected(lambda: client.prove(new))
        with pytest.raises(Fenced):
            await when_connected(lambda: client.prove(old.leader))
        leadership = await when_connected(lambda: client.campaign(new))
        assert leadership is not None
        assert leadership.epoch > old.epoch
        assert await when_connected(lambda: client.claim(LEASE, new))
    for reader in (client, other):
        await until(reader, lambda reader=reader: reader.members.get(A) == Member(new, b"new"))
        await until(
            reader, lambda reader=reader: reader.leadership == leadership and dict(reader.leases) == {LEASE: new}
        )
    await client.close()
    await until(other, lambda: A not in other.members and other.leadership is None)


async def test_a_client_that_was_not_started_or_is_closed_can_be_abandoned(coordinations, client):
    await client.close()
    coordinations.abandon(client)
    with pytest.raises(CoordinationUnavailable):
        await client.start_incarnation(A, above=0)


# --- watches
async def test_a_new_client_knows_what_is_there(coordinations, client, until):
    leadership = await leading(client, A)
    newcomer = await coordinations.open()
    await until(newcomer, lambda: A in newcomer.members and newcomer.leadership == leadership)
    assert newcomer.connection is Connection.CONNECTED


async def test_what_following_costs_is_counted(client, other, until):
    reads, changes = other.counts.reads, other.counts.changes
    await started(client, A)
    await until(other, lambda: A in other.members)
    assert other.counts.reads > reads
    assert other.counts.changes > changes


async def test_every_registered_listener_is_called_on_the_loop(client, other):
    loop, calls = asyncio.get_running_loop(), [loop_call(), loop_call()]
    for call, _ in calls:
        other.on_change(call)
    await started(client, A)
    async with asyncio.timeout(60):
        for _, called in calls:
            assert await called is loop


def loop_call():
    """A listener, and a future of the loop that it was called on."""
    called: asyncio.Future[asyncio.AbstractEventLoop] = asyncio.get_running_loop().create_future()

    def call() -> None:
        if not called.done():
            called.set_result(asyncio.get_running_loop())

    return call, called


async def test_members_cannot_be_changed_by_their_reader(client, until):
    await started(client, A)
    await until(client, lambda: A in client.members)
    with pytest.raises((TypeError, AttributeError)):
        client.members[B] = client.members[A]


# --- life
async def test_close_is_idempotent_and_a_closed_client_says_that_it_is_unavailable(client):
    broker = await started(client, A)
    await client.close()
    await client.close()
    with pytest.raises(CoordinationUnavailable):
        await client.prove(broker)
