"""The names of the algorithms by which a bundle is cut: `split_algorithm` is one of them."""

from __future__ import annotations

from enum import StrEnum


class Algorithm(StrEnum):
    """How cuts are found."""

    RANGE = "range_equally_divide"
    TOPIC_COUNT = "topic_count_equally_divide"
    SPECIFIED = "specified_positions_divide"
    FLOW_OR_QPS = "flow_or_qps_equally_divide"
    LOAD = "load_equally_divide"
    HOT_KEY = "hot_key_divide"


BY_KEYS = frozenset({Algorithm.TOPIC_COUNT, Algorithm.FLOW_OR_QPS, Algorithm.LOAD, Algorithm.HOT_KEY})
"""Those that only the owner can work out: its service knows where the keys are, and what they carry."""

AUTOMATIC = tuple(each.value for each in Algorithm if each is not Algorithm.SPECIFIED)
"""Those that need nobody to say where."""
