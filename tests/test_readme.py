"""The README's promises that can be run: its examples, the page that it names for real servers, and its links."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stack.servers import KafkaServer, ZooKeeperServer, free_port
from tests.pages import ROOT, blocks
from tests.servers import coordination_root, topic_prefix

README = (ROOT / "README.md").read_text()
PATIENCE_S = 200.0


def test_the_embedding_example_runs_as_it_stands(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    run = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr
    assert re.search(r"mine, under token 0000-\d{5}-\d{15}", run.stdout)


@pytest.mark.slow
def test_the_two_brokers_move_the_bundle_of_a_topic(tmp_path: Path) -> None:
    (block,) = (block.text for block in blocks("README.md") if block.title == "two brokers")
    install, *lines = block.splitlines()
    assert install == "pip install '.[all]'"
    bundle_moves(lines, tmp_path)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.zookeeper
def test_so_it_does_on_kafka_and_zookeeper(
    tmp_path: Path, kafka_server: KafkaServer, zookeeper_server: ZooKeeperServer
) -> None:
    shown = [block.text for block in blocks("docs/how-to/laptop.md") if "topics" in block.text]
    stores = f"--log kafka://{kafka_server.address} --coordination zookeeper://{zookeeper_server.address}"
    ours = f"{stores}{coordination_root('laptop')} --set topic_prefix={topic_prefix('laptop')}"
    text = "\n".join(shown).replace("$(python -m stack status)", ours)
    bundle_moves([line for line in text.splitlines() if "export PATH" not in line], tmp_path)


def bundle_moves(lines: list[str], directory: Path) -> None:
    """Run the lines in one shell, on free ports; after each broker wait until it says that it is ready."""
    one, two = str(free_port()), str(free_port())
    script = ["touch said", "trap 'kill $(jobs -p); wait' EXIT", "ready=0"]
    for line in lines:
        if start := re.match(r"(.*) &(   #.*)?$", line):
            wait = "ready=$((ready + 1)); until [ $(grep -c ' is ready: ' said) = $ready ]; do sleep 0.1; done"
            script.append(f"{start[1]} 2>>said & {wait}")
        else:
            script.append(line)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "LOADMANAGER_ADMIN_URL": f"127.0.0.1:{one}",
    }
    ran = subprocess.run(
        ["bash", "-ec", "\n".join(script).replace("8080", one).replace("8081", two)],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr + (directory / "said").read_text()
    assert f"127.0.0.1:{two}" in ran.stdout.splitlines()[-1]


def test_every_file_that_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing
