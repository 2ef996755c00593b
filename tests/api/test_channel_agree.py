"""`channel agree` as people run it, on SQLite files."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadmanager import Broker
from loadmanager_api.cli.main import main
from statechannel.errors import ForeignCluster
from tests.loadmanager.embedded import NAMESPACE, Host, embedded

CLUSTER = ("--cluster", "shop")


def agree(directory: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ("channel", "agree", "--log", f"sqlite:{directory}/cluster.db", *CLUSTER, *options))


def done(directory: Path, *options: str) -> dict:
    result = agree(directory, *options, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(directory: Path, *options: str) -> str:
    result = agree(directory, *options)
    assert result.exit_code != 0, result.output
    return result.output


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Where the files of a cluster are that has run once."""

    async def run() -> None:
        broker = embedded(tmp_path, cluster="shop", proof_validity_s=0.25)
        await broker.start()
        await broker.ensure_namespace(NAMESPACE, 4)
        await broker.stop(0)

    asyncio.run(run())
    return tmp_path


async def run_once(broker: Broker) -> float:
    """Start, serve, and stop; the proof time that held."""
    await broker.start()
    await broker.locate(f"{NAMESPACE}/alice")
    validity_s = broker.node.settings.proof_validity_s
    await broker.stop(0)
    return validity_s


def test_another_proof_time_is_agreed_on_and_brokers_without_one_take_it(stopped: Path):
    replaced = done(stopped, "--set", "proof_validity_s=0.5")
    assert (replaced["before"]["proof_validity_s"], replaced["now"]["proof_validity_s"]) == (0.25, 0.5)
    assert replaced["now"]["root"] == replaced["before"]["root"]
    assert not replaced["was_done"]
    again = agree(stopped, "--set", "proof_validity_s=0.5")
    assert "nothing was changed" in again.stderr
    assert "proof_validity_s   0.5" in again.stdout
    assert done(stopped)["was_done"], "what is not given stays as it is"
    assert asyncio.run(run_once(embedded(stopped, cluster="shop"))) == 0.5
    with pytest.raises(ForeignCluster, match=r"proof_validity_s is 0\.5 in the log and 0\.25 here"):
        asyncio.run(run_once(embedded(stopped, cluster="shop", proof_validity_s=0.25)))


def test_the_root_moves_and_brokers_at_the_old_one_do_not_start(stopped: Path):
    old, new = f"sqlite:{stopped}/cluster.db.coordination", f"sqlite:{stopped}/elsewhere"
    assert "--from-coordination" in refused(stopped, "--coordination", new)
    assert "correct --from-coordination" in refused(stopped, "--coordination", old, "--from-coordination", new), (
        "there is no such file"
    )
    assert "give either" in refused(stopped, "--coordination", new, "--from-coordination", old, "--lost")
    replaced = done(stopped, "--coordination", new, "--from-coordination", old)
    assert replaced["now"]["root"] != replaced["before"]["root"]
    with pytest.raises(ForeignCluster, match=replaced["now"]["root"]):
        asyncio.run(run_once(embedded(stopped, cluster="shop")))
    assert asyncio.run(run_once(embedded(stopped, cluster="shop", coordination=new))) == 0.25


def test_coordination_data_that_is_lost_is_replaced_on_the_operators_word(stopped: Path):
    for name in os.listdir(stopped):
        if ".coordination" in name:
            (stopped / name).unlink()
    with pytest.raises(ForeignCluster, match="the root here is empty"):
        asyncio.run(run_once(embedded(stopped, cluster="shop")))
    assert "--lost" in refused(stopped)
    assert not done(stopped, "--lost")["was_done"]
    asyncio.run(run_once(embedded(stopped, cluster="shop")))


def test_what_does_not_fit_is_refused_and_changes_nothing(stopped: Path, tmp_path_factory):
    before = done(stopped)
    assert "not 'other': correct --cluster" in refused(stopped, "--cluster", "other")
    assert "session_timeout_s must not be below" in refused(stopped, "--set", "proof_validity_s=7")
    assert "clock_drift cannot be set: fixed at 0.05" in refused(stopped, "--set", "clock_drift=0.06")
    assert "there is no file" in refused(tmp_path_factory.mktemp("empty"))
    assert done(stopped) == before


def test_a_dry_run_shows_the_new_agreement_and_keeps_the_old_one(stopped: Path):
    before = done(stopped)["now"]
    wanted = done(stopped, "--set", "proof_validity_s=0.5", "--dry-run")
    assert wanted["dry_run"]
    assert wanted["before"] == before
    assert wanted["now"] == {**before, "proof_validity_s": 0.5}
    told = agree(stopped, "--set", "proof_validity_s=0.5", "--dry-run")
    assert "proof_validity_s   0.5" in told.stdout
    assert "nothing was changed" in told.stderr
    assert done(stopped)["was_done"], "the log has the old one"
    for wrong in (("--cluster", "other"), ("--set", "proof_validity_s=7"), ("--set", "clock_drift=0.06")):
        assert refused(stopped, *wrong, "--dry-run") == refused(stopped, *wrong)


async def test_a_cluster_that_runs_goes_on_by_itself(tmp_path: Path):
    host = Host()
    broker = embedded(tmp_path, host, cluster="shop", session_timeout_s=3.0)
    await broker.start()
    try:
        await broker.ensure_namespace(NAMESPACE, 4)
        where = await broker.locate(f"{NAMESPACE}/alice")
        first = broker.node.current.me
        replaced = await asyncio.to_thread(done, tmp_path, "--set", "proof_validity_s=1")
        assert replaced["now"]["proof_validity_s"] == 1
        async with asyncio.timeout(60):
            while not broker.serving(where.bundle):
                await broker.locate(f"{NAMESPACE}/alice")
        assert broker.node.current.me.incarnation > first.incarnation
        assert broker.node.settings.proof_validity_s == 1
        assert where.bundle in host.abandoned, "the host was told at once"
    finally:
        await broker.stop(0)
