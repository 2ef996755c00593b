"""A trace of somebody's load is replayed as it was: how much, when, and on which keys."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from loadmanager.demo.counter.traffic import Trace, TraceError

PUBLIC = Path(__file__).parents[2] / "examples" / "traces" / "us-departures-2001.csv"
HEAD = "time,key,rate\n"


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "trace.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_replayed_requests_are_as_many_and_at_the_times_as_recorded(written) -> None:
    trace = Trace(written(HEAD + "100,a,10\n100,b,30\n102,a,0\n103,b,0\n104,a,5\n105,a,5\n"), "t/n")
    assert trace.length_s == 6
    assert [trace.requests_by(at_s) for at_s in (0, 1, 2, 3, 4, 6, 7)] == [0, 40, 80, 110, 110, 120, 160]
    assert [trace.time_of(n) for n in (0, 40, 80, 95, 110, 115, 120, 160)] == [0, 1, 2, 2.5, 4, 5, 6, 7]


def test_keys_get_the_share_that_they_had(written) -> None:
    trace = Trace(written(HEAD + "0,a,1\n0,b,3\n10,a,3\n10,b,0\n"), "t/n")
    early = Counter(trace.pick(5) for _ in range(4_000))
    late = Counter(trace.pick(15) for _ in range(100))
    assert early["persistent://t/n/b"] / early["persistent://t/n/a"] == pytest.approx(3, rel=0.2)
    assert set(late) == {"persistent://t/n/a"}


def test_it_can_be_made_quicker_and_scaled_to_a_mean_rate(written) -> None:
    path = written(HEAD + "0,a,10\n3600,a,30\n")
    quick = Trace(path, "t/n", speed=3600)
    assert (quick.length_s, quick.requests_by(1)) == (2, 36_000)
    scaled = Trace(path, "t/n", speed=3600, rate_s=100)
    assert scaled.requests_by(scaled.length_s) == pytest.approx(100 * scaled.length_s)
    assert scaled.requests_by(1) == pytest.approx(scaled.requests_by(2) / 4)


def test_a_key_that_is_no_plain_name_is_a_topic_all_the_same(written) -> None:
    assert Trace(written(HEAD + "0,a b/ü,1\n"), "t/n").names == ["persistent://t/n/a%20b%2F%C3%BC"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "first line must be time,key,rate"),
        ("zeit,key,rate\n", "first line must be"),
        (HEAD, "no line after"),
        (HEAD + "0,a\n", "line 2"),
        (HEAD + "0,a,much\n", "line 2"),
        (HEAD + "0,a,-1\n", "negative"),
        (HEAD + "0,a,inf\n", "infinite"),
        (HEAD + "0,,1\n", "key is missing"),
        (HEAD + "9,a,1\n3,a,1\n", "time goes back"),
        (HEAD + "0,a,0\n", "nothing to replay"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(written, text: str, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        Trace(written(text), "t/n")


def test_a_missing_file_and_a_speed_of_nothing_are_refused(tmp_path: Path, written) -> None:
    with pytest.raises(TraceError, match="No such file"):
        Trace(tmp_path / "none.csv", "t/n")
    with pytest.raises(TraceError, match="more than 0"):
        Trace(written(HEAD + "0,a,1\n"), "t/n", speed=0)


def test_the_public_trace_reads_and_has_a_quiet_night_and_busy_airports() -> None:
    trace = Trace(PUBLIC, "t/n", rate_s=100)
    assert trace.length_s == 24 * 3600
    night, noon = (trace.requests_by(hour * 3600 + 3600) - trace.requests_by(hour * 3600) for hour in (3, 12))
    assert noon > 20 * night
    assert Counter(trace.pick(12 * 3600) for _ in range(2_000)).most_common(1)[0][1] > 3 * 2_000 / 60
    assert "public domain" in PUBLIC.read_text(encoding="utf-8")
