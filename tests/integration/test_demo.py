"""The demo as people start it, in short: nothing fails, nothing is lost, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from stack.servers import KafkaServer, ZooKeeperServer

ROOT = Path(__file__).parents[2]
DEMO = (sys.executable, "-c", "from loadmanager_api.cli.main import main; main()", "demo")


@pytest.mark.slow
async def test_a_short_demo_loses_brokers_and_no_request(tmp_path: Path):
    await _lose_brokers_and_no_request(tmp_path)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.zookeeper
async def test_a_short_demo_on_real_servers_loses_brokers_and_no_request(
    tmp_path: Path, kafka_server: KafkaServer, zookeeper_server: ZooKeeperServer
):
    log, coordination = f"kafka://{kafka_server.address}", f"zookeeper://{zookeeper_server.address}"
    await _lose_brokers_and_no_request(tmp_path, "--log", log, "--coordination", coordination)


async def _lose_brokers_and_no_request(tmp_path: Path, *options: str):
    figures = tmp_path / "figures.json"
    code, told = await _demo(
        *("--seconds", "15", "--rate", "150", "--budget", "60", "--json", str(figures)),
        *("--picture", str(tmp_path / "demo.svg"), *options),
        directory=tmp_path,
    )
    assert code == 0, told
    found = json.loads(figures.read_text())
    assert (found["requests_failed"], found["increments_lost"], found["increments_doubled"]) == (0, 0, 0), told
    assert found["problems"] == []
    assert found["requests_ok"] > 1_000
    assert found["increments_stored"] >= found["requests_ok"]
    assert found["transfers"] >= 6
    assert 0 < found["gap_ms_p50"] <= found["gap_ms_p99"]
    assert found["failover_s"] > 0
    assert found["leader_failover_s"] > 0
    assert not _left_in(tmp_path), "a demo that went well leaves nothing"
    _tells_in_order(told)
    drawn = (tmp_path / "demo.svg").read_text()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert drawn.count(">SIGKILL<") == 2


def _tells_in_order(told: str):
    times = [float(found[1]) for line in told.splitlines() if (found := re.match(r"\s*(\d+\.\d+) s  ", line))]
    assert times == sorted(times)
    assert "brokers start" in told.partition("increments/s begin")[0]
    assert told.count("late: answered, but over 100 ms") == 1


async def _demo(*options: str, directory: Path) -> tuple[int | None, str]:
    environment = {**os.environ, "TMPDIR": str(directory)}
    process = await asyncio.create_subprocess_exec(
        *DEMO, *options, cwd=ROOT, env=environment, stdout=PIPE, stderr=STDOUT
    )
    told, _ = await process.communicate()
    return process.returncode, told.decode()


def _left_in(directory: Path) -> list[Path]:
    return list(directory.glob("loadmanager-demo-*"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_whatever_ends_the_demo_ends_its_processes(tmp_path: Path, number: signal.Signals):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(*DEMO, cwd=ROOT, env=environment, stdout=PIPE, stderr=STDOUT)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(90):
            told = b""
            while b"increments/s begin" not in told:
                line = await process.stdout.readline()
                assert line, f"the demo ended too early: {told.decode()}"
                told += line
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3
        process.send_signal(number)
        async with asyncio.timeout(60):
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    if number is not signal.SIGKILL:
        assert process.returncode == 130
        assert not _left_in(tmp_path)
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, 60)
    assert not alive


@pytest.mark.slow
async def test_options_that_make_no_sense_are_refused(tmp_path: Path):
    for options, advice in (
        (("--seconds", "3"), "at least 10 seconds"),
        (("--brokers", "1"), "2 to 6 brokers"),
        (("--log", "kafka://127.0.0.1:1"), "--coordination zookeeper"),
    ):
        code, told = await _demo(*options, directory=tmp_path)
        assert code == 2
        assert advice in told
