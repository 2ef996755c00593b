"""Which bundle policies hold for a bundle, and which of them has the word."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from loadmanager.model.policies.effective import Claims, balances, intersects, overrides_for
from loadmanager.model.policies.model import BundlePolicy, Policies
from statechannel.law.bundle import Bundle

WHOLE, RIGHT = Bundle("shop/x", 0, 1 << 20), Bundle("shop/x", 1 << 19, 1 << 20)
LEFT = Bundle("shop/x", 0, 1 << 19)


@given(
    st.dictionaries(st.tuples(st.integers(0, 40), st.integers(1, 20)), st.integers(1, 9), max_size=12),
    st.tuples(st.integers(0, 60), st.integers(1, 20)),
)
def test_those_hold_that_share_a_part_of_the_ring(policies: dict[tuple[int, int], int], asked: tuple[int, int]) -> None:
    written = {Bundle("shop/x", lo, lo + size): BundlePolicy(weight=w) for (lo, size), w in policies.items()}
    bundle = Bundle("shop/x", asked[0], asked[0] + asked[1])
    found = Claims(written).on(bundle)
    assert dict(found) == {each: policy for each, policy in written.items() if intersects(each, bundle)}
    sizes = [each.hi - each.lo for each, _ in found]
    assert sizes == sorted(sizes)
    assert Claims(written).on(Bundle("shop/y", 0, 100)) == ()


def test_the_smallest_range_has_the_word_on_either_side() -> None:
    for part in (LEFT, RIGHT):
        broad = BundlePolicy(balancing=False, settings={"split_max_keys": 7, "merge": False})
        narrow = BundlePolicy(balancing=True, settings={"split_max_keys": 9})
        claims = Claims({WHOLE: broad, part: narrow})
        claimed = tuple(policy for _, policy in claims.on(part))
        assert overrides_for(Policies(), "shop/x", claimed) == {"split_max_keys": 9, "merge": False}
        assert balances(Policies(), "shop/x", claimed)


def lookups_cost_s(policies: int) -> float:
    """What a thousand lookups among so many policies of one namespace cost, in seconds of the processor."""
    size = 1 << 12
    claims = Claims({Bundle("shop/x", at * size, (at + 1) * size): BundlePolicy(pin="a:1") for at in range(policies)})
    wanted = [at * policies // 1000 for at in range(1000)]
    begin_s = time.process_time()
    for at in wanted:
        assert len(claims.on(Bundle("shop/x", at * size, (at + 1) * size))) == 1
    return time.process_time() - begin_s


def test_thousands_of_policies_in_one_namespace_cost_a_lookup_nothing() -> None:
    few, many = (min(lookups_cost_s(policies) for _ in range(3)) for policies in (200, 20_000))
    assert many < 20 * few, "a walk through all of them costs a hundred times as much"
