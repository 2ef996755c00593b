"""When a member of a measured group has read a record."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from bench.group_member import SUSPENDED_S, Printing


class Record:
    """The third one of partition 7."""

    def partition(self) -> int:
        return 7

    def offset(self) -> int:
        return 3


@pytest.mark.parametrize(("ago_s", "is_suspended"), [(0.3, False), (SUSPENDED_S + 1, True)])
def test_a_record_in_the_hands_of_a_suspended_member_was_read_when_it_was_asked_for(
    capsys: pytest.CaptureFixture[str], ago_s: float, is_suspended: bool
) -> None:
    asked_s = time.time() - ago_s
    Printing(0.0).read(cast("Any", Record()), asked_s)
    first_s, partition, offset, count, last_s = capsys.readouterr().out.split()
    assert (partition, offset, count) == ("7", "3", "1")
    assert first_s == last_s
    assert (float(first_s) - asked_s < 0.001) == is_suspended
