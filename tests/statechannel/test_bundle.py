"""Names and places on the ring: what parses, where a topic falls, and that ranges tile."""

from __future__ import annotations

from bisect import bisect_right
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statechannel.errors import InvalidName
from statechannel.law.bundle import (
    FULL_UPPER,
    KEPT_CHARACTERS,
    MAX_BUNDLES_AT_CREATION,
    Bundle,
    Key,
    check_namespace,
    check_tiling,
    even_boundaries,
    index_of,
    parse_key,
    position_of,
    tile,
    tiles_exactly,
)
from statechannel.law.record import BrokerId, Token

positions = st.integers(0, FULL_UPPER)
boundaries = st.sets(st.integers(1, FULL_UPPER - 1), max_size=40).map(lambda cuts: (0, *sorted(cuts), FULL_UPPER))
words = st.text("abcXYZ019_-=:.", min_size=1, max_size=8)
namespaces = st.builds("{}/{}".format, words, words)


@pytest.mark.parametrize(
    ("key", "position"),
    [
        ("", 0x00000000),
        ("123456789", 0xCBF43926),  # the check value of CRC-32/ISO-HDLC, Guava's crc32
        ("The quick brown fox jumps over the lazy dog", 0x414FA339),
        ("a", 0xE8B7BE43),
    ],
)
def test_a_key_falls_where_crc32_puts_it(key: str, position: int):
    assert position_of(key) == position


@pytest.mark.parametrize("name", [f"t/n/{'a' * KEPT_CHARACTERS}", "t/n/\U0001f600"])
def test_a_name_of_a_key_that_takes_much_memory_is_not_kept(name: str):
    assert parse_key("t/n/a") is parse_key("t/n/a")
    assert parse_key(name) == parse_key(name)
    assert parse_key(name) is not parse_key(name)


def test_key_is_placed_by_its_full_name_and_the_short_form_is_the_same():
    full = Key.parse("persistent://shop/orders/created")
    assert (full.namespace, full.position) == ("shop/orders", position_of("persistent://shop/orders/created"))
    assert Key.parse("shop/orders/created") == full
    assert Key.parse("non-persistent://shop/orders/created").position != full.position


def test_a_key_outside_ascii_is_placed_by_its_utf8_bytes():
    assert position_of("grün") == crc32(b"gr\xc3\xbcn")
    assert Key.parse("shop/orders/grün").position == position_of("persistent://shop/orders/grün")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        "shop/orders",
        "shop/orders/",
        "kafka://shop/orders/x",
        "persistent://shop/x",
        "s//x",
        "s/ñ/x",
        "s/o/\ud800",
    ],
)
def test_what_is_no_topic_is_refused(name: str):
    with pytest.raises(InvalidName):
        Key.parse(name)


@pytest.mark.parametrize("name", ["", "shop", "shop/", "/orders", "a/b/c", "a b/c", "a/b\n", "täg/x", "a/b?"])
def test_what_is_no_namespace_is_refused(name: str):
    with pytest.raises(InvalidName, match="not a namespace"):
        check_namespace(name)


@pytest.mark.parametrize(
    "name",
    [
        "shop/orders",
        "shop/orders/0x00000000",
        "shop/orders/0x00000000-0x40000000",
        "shop/orders/0x0_0x40000000",
        "shop/orders/0x40000000_0x40000000",
        "shop/orders/0x80000000_0x40000000",
        "shop/orders/0x00000000_0x1000000000",
        "shop/orders/0x00000000_0x4000000g",
        "shop/orders/0x00000000_0x40000000\n",
        "shop/0x00000000_0x40000000",
    ],
)
def test_what_is_no_bundle_is_refused(name: str):
    with pytest.raises(InvalidName):
        Bundle.parse(name)


def test_a_bundle_prints_as_pulsar_prints_it():
    assert str(Bundle("shop/orders", 0x40000000, 0xC0000000)) == "shop/orders/0x40000000_0xc0000000"


def test_capital_digits_are_read_alike_in_a_bundle_and_in_a_range():
    parsed = Bundle.parse("shop/orders/0xC0000000_0xFFFFFFFF")
    assert parsed == Bundle.of("shop/orders", "0xC0000000_0xFFFFFFFF")
    assert str(parsed) == "shop/orders/0xc0000000_0xffffffff"


@given(namespaces, st.lists(positions, min_size=2, max_size=2, unique=True).map(sorted))
def test_a_bundle_survives_printing_and_parsing(namespace: str, ends: list[int]):
    bundle = Bundle(namespace, *ends)
    assert Bundle.parse(str(bundle)) == bundle
    assert Bundle.of(namespace, bundle.range) == bundle


@pytest.mark.parametrize(
    ("bundles", "expected"),
    [
        (1, (0, 0xFFFFFFFF)),
        (2, (0, 0x80000000, 0xFFFFFFFF)),
        (3, (0, 0x55555555, 0xAAAAAAAA, 0xFFFFFFFF)),
        (4, (0, 0x40000000, 0x80000000, 0xC0000000, 0xFFFFFFFF)),
        (7, (0, 0x24924924, 0x49249248, 0x6DB6DB6C, 0x92492490, 0xB6DB6DB4, 0xDB6DB6D8, 0xFFFFFFFF)),
    ],
)
def test_even_boundaries_are_those_of_pulsar(bundles: int, expected: tuple[int, ...]):
    assert even_boundaries(bundles) == expected


@given(st.integers(1, 2_000))
def test_even_boundaries_follow_pulsars_loop(bundles: int):
    size, edge, partitions = 2**32 // bundles, 2**32 // bundles, [0]
    for i in range(bundles):
        partitions.append(edge if i != bundles - 1 else 2**32 - 1)
        edge += size
    assert even_boundaries(bundles) == check_tiling(partitions)


@pytest.mark.parametrize("bundles", [0, -1, MAX_BUNDLES_AT_CREATION + 1])
def test_a_namespace_needs_a_sensible_number_of_bundles(bundles: int):
    with pytest.raises(InvalidName):
        even_boundaries(bundles)


@pytest.mark.parametrize(
    "cuts",
    [(), (0,), (0, 5), (1, FULL_UPPER), (0, 5, 5, FULL_UPPER), (0, 9, 5, FULL_UPPER), (0, FULL_UPPER, FULL_UPPER)],
)
def test_boundaries_that_do_not_tile_are_refused(cuts: tuple[int, ...]):
    with pytest.raises(InvalidName):
        check_tiling(cuts)


@given(boundaries)
def test_any_boundaries_tile_in_any_order_and_with_a_hole_they_do_not(edges: tuple[int, ...]):
    bundles = tile("t/n", check_tiling(edges))
    assert tiles_exactly(bundles)
    assert tiles_exactly(reversed(bundles))
    assert not any(tiles_exactly(b for b in bundles if b is not left_out) for left_out in bundles)
    assert not tiles_exactly((*bundles, bundles[0]))


@given(boundaries, st.data())
def test_each_position_is_in_exactly_one_bundle_and_bisection_finds_it(edges: tuple[int, ...], data: st.DataObject):
    bundles = tile("t/n", edges)
    position = data.draw(positions | st.sampled_from(edges))
    [holder] = [b for b in bundles if position in b]
    assert bundles[index_of([b.lo for b in bundles], position)] == holder
    assert index_of(edges[:-1], position) == bisect_right(edges[:-1], position) - 1


def test_the_last_position_belongs_to_the_last_bundle():
    low, high = tile("t/n", (0, FULL_UPPER - 1, FULL_UPPER))
    assert FULL_UPPER in high
    assert FULL_UPPER - 1 in high
    assert FULL_UPPER not in low


@given(st.builds(BrokerId, words, st.integers(0, 2**40)))
def test_a_broker_survives_printing_and_parsing(broker: BrokerId):
    assert BrokerId.parse(str(broker)) == broker


@pytest.mark.parametrize("text", ["", "a:1", "a:1#", "#7", "a:1#x", "a:1#-1", "a:1#²", "a:1# 7"])
def test_what_is_no_broker_incarnation_is_refused(text: str):
    with pytest.raises(InvalidName):
        BrokerId.parse(text)


numbers = st.tuples(st.integers(0, 9999), st.integers(0, 99999), st.integers(0, 10**15 - 1))


@given(numbers, numbers)
def test_tokens_survive_printing_and_compare_as_text_like_values(one, other):
    left, right = Token(*one), Token(*other)
    assert Token.parse(str(left)) == left
    assert (left < right) == (str(left) < str(right))


@pytest.mark.parametrize("text", ["", "1-2", "1-2-3", "0001-00002-x", "0001-00002-00000000000000_3", "a-b-c"])
def test_what_is_no_token_is_refused(text: str):
    with pytest.raises(InvalidName):
        Token.parse(text)
