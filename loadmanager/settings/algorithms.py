"""The names of the split algorithms, for `split_algorithm`."""

from __future__ import annotations

from enum import StrEnum


class Algorithm(StrEnum):
    """The algorithms that choose cuts."""

    RANGE = "range_equally_divide"
    TOPIC_COUNT = "topic_count_equally_divide"
    SPECIFIED = "specified_positions_divide"
    FLOW_OR_QPS = "flow_or_qps_equally_divide"
    LOAD = "load_equally_divide"
    HOT_KEY = "hot_key_divide"


BY_KEYS = frozenset({Algorithm.TOPIC_COUNT, Algorithm.FLOW_OR_QPS, Algorithm.LOAD, Algorithm.HOT_KEY})
"""Algorithms that only the owner can run: its service knows the positions and loads of keys."""

AUTOMATIC = tuple(each.value for each in Algorithm if each is not Algorithm.SPECIFIED)
"""Algorithms that need no given positions."""
