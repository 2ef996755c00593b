"""A proof counts from before its request was sent, for the validity, and never after a fence."""

from __future__ import annotations

from statechannel.runtime.proofs import Proofs

V = 2.0


def test_nothing_is_proved_at_the_start():
    assert not Proofs(2, V).fresh(0, 0.0)


def test_a_coordination_proof_counts_from_its_request_for_every_partition():
    proofs = Proofs(2, V)
    proofs.coordination_proved(10.0)
    for partition in (0, 1):
        assert proofs.fresh(partition, 11.999)
        assert not proofs.fresh(partition, 12.0)


def test_a_channel_proof_counts_for_its_partition_only():
    proofs = Proofs(2, V)
    proofs.channel_proved(1, 10.0)
    assert proofs.fresh(1, 11.999)
    assert not proofs.fresh(0, 10.0)
    assert not proofs.fresh(1, 12.0)


def test_the_later_of_the_two_counts_whichever_it_is():
    proofs = Proofs(1, V)
    proofs.coordination_proved(10.0)
    proofs.channel_proved(0, 11.0)
    assert proofs.until_s == [13.0]
    proofs.coordination_proved(12.0)
    assert proofs.until_s == [14.0]


def test_a_late_answer_to_an_early_request_takes_nothing_away():
    proofs = Proofs(1, V)
    proofs.coordination_proved(11.0)
    proofs.coordination_proved(10.0)
    proofs.channel_proved(0, 9.0)
    assert proofs.until_s == [13.0]


def test_a_fence_is_for_ever():
    proofs = Proofs(2, V)
    proofs.coordination_proved(10.0)
    proofs.fence()
    assert not proofs.fresh(0, 10.0)
    proofs.coordination_proved(20.0)
    proofs.channel_proved(0, 20.0)
    assert not proofs.fresh(0, 20.0)
    assert not proofs.fresh(1, 20.0)


def test_those_who_hold_the_list_see_the_fence():
    """Other threads read the list itself."""
    proofs = Proofs(1, V)
    seen = proofs.until_s
    proofs.coordination_proved(10.0)
    proofs.fence()
    assert seen[0] < 0


def test_channel_is_asked_when_the_coordination_proof_is_half_expired():
    proofs = Proofs(1, V)
    assert proofs.wants_channel_proof(0.0)
    proofs.coordination_proved(10.0)
    assert not proofs.wants_channel_proof(11.0)
    assert proofs.wants_channel_proof(11.01)
    proofs.channel_proved(0, 11.0)
    assert proofs.wants_channel_proof(11.01), "its own freshness does not stop it"
