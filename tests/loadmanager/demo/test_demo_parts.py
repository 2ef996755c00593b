"""The demo's parts that decide something: what counts as a gap, and that the picture fits."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console

from loadmanager.demo.counter.load import Snapshot
from loadmanager.demo.member import Orders
from loadmanager.demo.options import Options
from loadmanager.demo.report import bundles_over_time, gaps_ms, percentile, summary, timeline
from loadmanager.demo.screen import Pulse, picture
from loadmanager.demo.stage import Life, Member, Served, Stage

MS = 1_000_000


def served(at_ms: int, by: str, on: bool, bundle: str = "x") -> Served:
    return Served(at_ms * MS, bundle, by, on)


def test_gap_is_from_the_old_owners_end_to_the_new_owners_begin():
    told = [served(30, "B", True), served(10, "A", True), served(25, "A", False), served(1, "B", False, "y")]
    assert gaps_ms(told) == [5.0]


def test_a_killed_owner_leaves_no_end_and_so_no_gap():
    assert gaps_ms([served(10, "A", True), served(2_500, "B", True)]) == []


def test_who_serves_again_what_it_served_before_made_no_move():
    assert gaps_ms([served(10, "A", True), served(20, "A", False), served(30, "A", True)]) == []


def test_percentiles_are_of_what_there_is():
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([float(i) for i in range(100)], 0.99) == 99.0


@pytest.mark.parametrize("spoilt", [{"failed": 1}, {"lost": 1}, {"doubled": 1}, {"examples": ("late verdict",)}])
def test_only_a_run_without_any_fault_is_clean(spoilt: dict[str, object]):
    def of(load: Snapshot) -> bool:
        found = summary(load, [], transfers=1, failovers={}, ready_s=1.0, seconds=10, log="sqlite", problems=[])
        return found.clean

    assert of(Snapshot(ok=10))
    assert not of(Snapshot(ok=10, **spoilt))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("log", "coordination", "says"),
    [
        ("foo:bar", None, "--log 'foo:bar' is not an address"),
        ("cluster.db", None, "sqlite:FILE or kafka://host:port"),
        ("sqlite:", None, "names no file"),
        ("kafka://h:1,", "zookeeper://h:1", "kafka://host:port"),
        ("kafka://h:1", "kafka://h:1", "zookeeper://host:port"),
        ("kafka://h:1", "zookeeper:///root", "zookeeper://host:port"),
        ("kafka://h:1", None, "where ZooKeeper is"),
    ],
)
def test_addresses_that_are_none_are_refused_before_anything_begins(log: str, coordination: str | None, says: str):
    with pytest.raises(ValueError, match=re.escape(says)):
        Options(log=log, coordination=coordination).check()


def test_addresses_of_servers_and_files_are_taken():
    Options(log="kafka://h:1,[::1]:2", coordination="zookeeper://h:1,i:2/root").check()
    Options(log="sqlite:x.db").check()


def test_killed_broker_serves_nothing_from_its_end_to_its_next_begin():
    told = [served(1_000, "A", True, "x"), served(2_000, "A", True, "y"), served(3_000, "A", False, "x")]
    told += [served(1_500, "B", True, "z"), served(9_000, "A", True, "z")]
    lives = [Life("A", 0.0, 0.5, 5.0, "SIGKILL"), Life("A", 6.0, 8.0)]
    held = bundles_over_time(told, lives, "A", began_s=0.0)
    assert held == [(1.0, 1.0), (2.0, 2.0), (3.0, 1.0), (5.0, 0.0), (9.0, 1.0)]


async def test_the_timeline_is_well_formed_and_tells_every_event_in_order(tmp_path: Path):
    async with asyncio.TaskGroup() as tasks:
        stage = Stage(Options(), tmp_path, tasks)
        stage.lives += [Life("A", 0.0, 1.0, 5.0, "SIGKILL"), Life("B", 0.0, 1.0)]
        stage.served += [Served(int(1e9 * (stage.began_s + at_s)), "x", by, True) for at_s, by in ((1, "A"), (6, "B"))]
        stage.loads += [(2.0, Snapshot(ok=1, p99_ms=3.0)), (6.0, Snapshot(ok=2, failed=1, p99_ms=9_000.0))]
        for text, tone in (("A <starts> & runs", "act"), ("quiet", "plain"), ("SIGKILL to A", "bad")):
            stage.note(text, tone)
        found = summary(stage.load, [], transfers=1, failovers={}, ready_s=1.0, seconds=10, log="sqlite", problems=[])
        picture_file = ElementTree.fromstring(timeline(stage, found))
    texts = [element.text or "" for element in picture_file.iter() if element.tag.endswith("text")]
    assert [text for text in texts if "A" in text and "broker" not in text] == ["A <starts> & runs", "SIGKILL to A"]
    assert "SIGKILL" in texts
    assert "quiet" not in texts
    assert len([each for each in picture_file.iter() if each.tag.endswith("circle")]) == 1, "one look had failures"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 50)])
async def test_the_picture_fits_the_terminal(tmp_path: Path, width: int, height: int):
    async with asyncio.TaskGroup() as tasks:
        stage = Stage(Options(), tmp_path, tasks)
        for i, label in enumerate("ABCD"):
            member = stage.members[label] = Member(label, f"127.0.0.1:4000{i}")
            member.state = "killed" if label == "D" else "up"
        for i in range(40):
            stage.note(f"event {i} of 127.0.0.1:40000 with a long story " * 4, "act")
        stage.load = Snapshot(ok=1_234_567, late=12_345, failed=1, in_flight=999, rate_s=300.0, p99_ms=10_000.0)
        console = Console(file=StringIO(), width=width, height=height, force_terminal=True, color_system=None)
        pulse = Pulse()
        async with stage.observer.running():
            for _ in range(300):
                pulse.take(stage)
            lines = console.render_lines(picture(stage, pulse, console), pad=False)
    text = ["".join(segment.text for segment in line) for line in lines]
    assert len(text) <= height
    assert all(len(line) <= width for line in text)
    assert any("D 127.0.0.1:40003 killed" in line for line in text)
    shown = [int(found[1]) for line in text if (found := re.search(r"event (\d+) of A", line))]
    assert shown == list(range(40 - len(shown), 40)), "brokers have letters, and the newest events are in their order"
    assert any("setting up: 3 of 3 brokers" in line or "bundles have owners" in line for line in text)


def test_what_is_kept_goes_to_a_folder_of_its_own(tmp_path: Path):
    Options(keep=tmp_path / "new").check()
    Options(keep=tmp_path).check()
    (tmp_path / "cluster.db").touch()
    with pytest.raises(ValueError, match="a new or an empty folder"):
        Options(keep=tmp_path).check()


def test_a_member_that_cannot_start_says_why_in_one_line(tmp_path: Path):
    unwell: dict[str, object] = {"log": f"sqlite:{tmp_path}/cluster.db", "advertised": "127.0.0.1:0"}
    (tmp_path / "cluster.db").write_bytes(b"no database, and no log of ours")
    mine, its = socket.socketpair()  # it ends with its parent: when standard input does
    with mine, its:
        ended = subprocess.run(
            [sys.executable, "-m", "loadmanager.demo.member", orders(tmp_path, unwell)],
            stdin=its.fileno(), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    (line,) = ended.stderr.strip().splitlines()
    assert "cluster.db" in line


def orders(directory: Path, settings: dict[str, object]) -> str:
    return msgspec.json.encode(Orders(settings, str(directory / "store.db"), "demo/counters", 2)).decode()
