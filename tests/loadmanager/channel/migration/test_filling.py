"""What an export says can be said again by ordinary records, in any number of steps, and no token is old then."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.channel.migration import log_import
from loadmanager.channel.migration.log_import import differences, plan, token_before
from loadmanager.errors import Conflict
from statechannel.law import codec
from statechannel.law.bundle import Bundle, even_boundaries
from statechannel.law.partition import DONE
from statechannel.law.record import Action, BrokerId, Record
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change, Ownership
from tests.loadmanager.channel.migration.channels import (
    A,
    B,
    Book,
    begun,
    book_of,
    exported,
    owners,
    two_namespaces,
    with_numbers,
)

seeds = st.integers(0, 2**32)


def filled(new: Book, export, rounds: int = 20) -> int:
    """Fill it; how many rounds it took."""
    for done in range(rounds):
        planned = plan(new.table, export)
        if not planned:
            return done
        refused = [verdict for verdict in new.write(planned) if not isinstance(verdict, Change)]
        assert not refused, refused
    raise AssertionError(f"still not filled: {plan(new.table, export)[:2]}")


def entry_of(table: OwnershipTable, bundle: Bundle) -> Ownership:
    found = table.get(bundle)
    assert found is not None
    return found


def bundles_of(table: OwnershipTable, namespace: str) -> tuple[Bundle, ...]:
    known = table.namespace(namespace)
    assert known is not None
    return known.bundles


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(0, 150), st.integers(1, 5))
def test_filled_log_has_the_same_bundles_and_owners_and_later_tokens(seed: int, steps: int, partitions: int):
    old, new = book_of(seed, steps), begun(partitions)
    export = exported(old)
    filled(new, export)
    assert owners(new.table) == owners(old.table)
    assert new.table.namespaces() == old.table.namespaces()
    assert all(new.table.token(entry_of(new.table, e.bundle)) > token_before(export, e) for e in export.entries())
    assert list(differences(new.table, export)) == []
    new.table.check_invariants()


@settings(max_examples=80, deadline=None)
@given(seeds, st.integers(0, 120), st.integers(3, 7))
def test_also_where_a_namespace_has_more_bundles_than_a_record_can_name(seed: int, steps: int, most: int):
    old, new = book_of(seed, steps), begun(3)
    export = exported(old)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_import, "MOST_BOUNDARIES", most)
        patch.setattr(log_import, "RECORD_BYTES", 100)
        filled(new, export)
    assert owners(new.table) == owners(old.table)
    assert list(differences(new.table, export)) == []


@settings(max_examples=80, deadline=None)
@given(seeds, st.integers(1, 120), seeds)
def test_interrupted_filling_writes_the_rest_whatever_part_was_written(seed: int, steps: int, cut: int):
    old, new, dice = book_of(seed, steps), begun(2), Random(cut)
    export = exported(old)
    for _ in range(4):
        planned = plan(new.table, export)
        part = planned[: dice.randint(0, len(planned))]
        new.write([*part, *part])  # an append whose answer was lost is repeated
    filled(new, export)
    assert owners(new.table) == owners(old.table)
    assert list(differences(new.table, export)) == []


def test_every_broker_comes_back_under_a_higher_number():
    old, new = two_namespaces(), begun(1)
    filled(new, exported(old))
    assert with_numbers(new.table) == with_numbers(old.table) == {"a:1": 4, "b:1": 2, "c:1": 0}


def test_what_was_on_its_way_is_where_it_was():
    old, new = two_namespaces(), begun(2)
    filled(new, exported(old))
    first = bundles_of(new.table, "shop/orders")
    assert [entry_of(new.table, bundle).holder for bundle in first] == [A, A, A, A, B, B, None, None]
    assert new.table.namespace("shop/gone") is None


def test_a_fresh_log_takes_two_rounds_and_few_records():
    new = begun(2)
    export = exported(two_namespaces())
    assert filled(new, export) == 2
    assert [record.action for _, _, record in new.log[1:]] == [
        *(Action.NOOP,) * 2, *(Action.CREATE_NAMESPACE,) * 2, *(Action.OWN,) * 3,
    ]  # fmt: skip


def test_no_record_is_larger_than_a_log_takes():
    namespace = "t" * 60 + "/" + "n" * 60
    old, new = Book(), begun(1)
    bundles = old.create(namespace, even_boundaries(65_536))
    old.do(Action.OWN, bundles, A, BrokerId("host.name.example:65535", 7))
    filled(new, exported(old))
    sizes = [len(codec.encode(record)) for _, _, record in new.log]
    assert 600_000 < max(sizes) < 1_000_000
    assert owners(new.table) == owners(old.table)


@pytest.mark.slow
def test_a_hundred_thousand_bundles_of_one_namespace():
    old, new = Book(), begun(1)
    bundles = old.create("t/n", (*range(0, 4_000_000_000, 40_000), 0xFFFFFFFF))
    old.do(Action.OWN, bundles[:50_000], A, A)
    export = exported(old)
    assert filled(new, export) <= 8
    assert owners(new.table) == owners(old.table)


# --- somebody else


def test_bundles_that_are_none_of_the_exports_stop_it():
    new = begun(2)
    new.create("shop/orders", (0, 99, 0xFFFFFFFF))
    with pytest.raises(Conflict, match="choose a new one"):
        plan(new.table, exported(two_namespaces()))


def test_a_bundle_that_somebody_else_took_stops_it():
    old, new = two_namespaces(), begun(2)
    new.write(plan(new.table, exported(old)))
    new.do(Action.OWN, bundles_of(new.table, "shop/orders")[:1], BrokerId("c:1", 1), BrokerId("c:1", 1))
    with pytest.raises(Conflict, match="went to c:1#1, not to a:1#4: a broker runs on this log already"):
        plan(new.table, exported(old))


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda new: new.do(Action.RELEASE, new.table.held_by(A)[:1], A), "was a:1, and is None"),
        (lambda new: new.create("shop/more", (0, 0xFFFFFFFF)), "there are 12 bundles, not 11"),
    ],
)
def test_what_is_not_as_it_was_is_named(spoil, found: str):
    new, export = begun(2), exported(two_namespaces())
    filled(new, export)
    spoil(new)
    assert found in "; ".join(differences(new.table, export))


def test_a_token_that_is_not_later_is_named():
    export = exported(two_namespaces())
    new = begun(2, generation=3)
    filled(new, export)
    assert "is 0003-" in next(differences(new.table, export))


def test_reused_numbers_and_missing_bundles_are_named():
    found = list(differences(begun(2).table, exported(two_namespaces())))
    assert "a:1 would get the incarnation 4 again" in found
    assert any("is missing" in each for each in found)


def test_an_import_is_unfinished_until_its_mark_stands():
    new = begun(2)
    assert new.table.import_is_unfinished
    new.replay(Record("r", Action.NOOP, DONE), 0)
    assert not new.table.import_is_unfinished
    assert not Book().table.import_is_unfinished, "a log that a broker began is nobody's import"
    assert not Book(cluster_identity=None).table.import_is_unfinished


def test_an_import_of_an_import_is_unfinished_too_until_its_own_mark_stands():
    old, new = begun(1), begun(1, generation=5)
    old.replay(Record("r", Action.NOOP, DONE), 0)
    filled(new, exported(old))
    assert new.table.import_is_unfinished
