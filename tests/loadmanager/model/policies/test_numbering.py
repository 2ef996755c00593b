"""Both ways to number combinations agree."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.model.policies.constraints import DENSE, numbered


@given(st.lists(st.integers(0, 50), max_size=60))
def test_the_quick_way_and_the_general_one_agree(keys: list[int]):
    asked = np.array(keys, np.int64)
    for possible in (51, DENSE + 1):
        distinct, places = numbered(asked, possible)
        assert distinct.tolist() == sorted(set(keys))
        assert distinct[places].tolist() == keys
