"""`channel export`, `channel import` and `migrate` as people run them, on SQLite files."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadmanager.channel.migration.offline_log import TOPIC, FoldedLog
from loadmanager.settings import Settings
from loadmanager_api.cli.main import main
from loadmanager_api.cli.stores import log_of
from statechannel.adapters.sqlite.coordination import SqliteCoordination
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.law import codec
from statechannel.law.table import OwnershipTable
from statechannel.ports import Payload, TopicSpec
from tests.loadmanager.channel.migration.channels import owners, two_namespaces

QUICK = ("--cluster", "shop", "--set", "proof_validity_s=0.25")


def loadmanager(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def done(*arguments: str) -> Result:
    result = loadmanager(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: str, code: int = 1) -> str:
    result = loadmanager(*arguments)
    assert result.exit_code == code, result.output
    return result.output


def files(directory: Path) -> set[str]:
    """What lies there. SQLite may leave its own two behind when two connections of a file end at once."""
    return {path.name for path in directory.iterdir() if not path.name.endswith(("-shm", "-wal"))}


@pytest.fixture
def old(tmp_path: Path) -> str:
    """The address of a log with a cluster on it that has stopped."""

    async def fill() -> None:
        log = SqliteLog(tmp_path / "old.db")
        await log.start(5)
        book = two_namespaces()
        await log.open_topic(TopicSpec(TOPIC, book.table.partitions))
        for partition, _, record in book.log:
            await log.append(TOPIC, partition, [Payload(None, codec.encode(record, codec.version_of(record)))])
        await log.close()
        coordination = SqliteCoordination(tmp_path / "old.db.coordination")
        await coordination.start(5)
        assert book.table.cluster_identity is not None
        await coordination.identify(book.table.cluster_identity.cluster, book.table.cluster_identity.identity)
        await coordination.close()

    asyncio.run(fill())
    return f"sqlite:{tmp_path}/old.db"


def table_of(path: Path) -> OwnershipTable:
    async def fold() -> OwnershipTable:
        log = SqliteLog(path)
        await log.start(5)
        folded = FoldedLog(log, str(path))
        await folded.open()
        await log.close()
        return folded.table

    return asyncio.run(fold())


def test_a_backup_is_taken_and_restored(tmp_path: Path, old: str):
    file, new = tmp_path / "backup", tmp_path / "new.db"
    told = done("channel", "export", str(file), "--log", old).stdout
    assert "cluster shop, generation 3, 11 bundles" in told
    assert "covers each partition up to: " in told
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    result = done("channel", "import", str(file), "--log", f"sqlite:{new}", *QUICK)
    assert "owned by a:1  4" in result.stdout
    assert "start the brokers" in result.stderr
    assert "not checked: whether a broker of the lost log still runs" in result.stderr
    table = table_of(new)
    assert owners(table) == owners(two_namespaces().table)
    assert table.cluster_identity is not None
    assert table.cluster_identity.generation == 4
    assert (
        "an earlier run did this already"
        in done("channel", "import", str(file), "--log", f"sqlite:{new}", *QUICK).stderr
    )


def test_a_backup_can_take_the_place_of_the_last_one(tmp_path: Path, old: str):
    file = tmp_path / "backup"
    file.write_bytes(b"the last one")
    assert "exists already" in refused("channel", "export", str(file), "--log", old)
    assert file.read_bytes() == b"the last one"
    answer = done("channel", "export", str(file), "--replace", "--log", old, "-o", "json").stdout
    assert json.loads(answer) == {
        "file": str(file), "cluster": "shop", "generation": 3, "bundles": 11,
        "next_offsets": [p.next_offset for p in map(two_namespaces().table.cut, range(2))],
        "size_bytes": file.stat().st_size,
    }  # fmt: skip


def test_a_copy_of_the_file_is_exported_as_the_file_is(tmp_path: Path, old: str):
    with closing(sqlite3.connect(tmp_path / "old.db")) as db, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        db.backup(copy)
    done("channel", "export", str(tmp_path / "x"), "--log", f"sqlite:{tmp_path}/copy.db")
    done("channel", "import", str(tmp_path / "x"), "--log", f"sqlite:{tmp_path}/new.db", *QUICK)
    assert owners(table_of(tmp_path / "new.db")) == owners(two_namespaces().table)


def test_what_is_not_there_is_not_created(tmp_path: Path, old: str):
    before = files(tmp_path)
    no = f"sqlite:{tmp_path}/no.db"
    assert "there is no file" in refused("channel", "export", str(tmp_path / "x"), "--log", no)
    assert "is not a file: correct --log" in refused(
        "channel", "export", str(tmp_path / "x"), "--log", f"sqlite:{tmp_path}"
    )
    assert "there is no file" in refused("migrate", "--from-log", no, "--log", f"sqlite:{tmp_path}/new.db")
    wrong = ("--from-coordination", no)
    assert "correct --from-coordination" in refused(
        "migrate", "--from-log", old, *wrong, "--log", f"sqlite:{tmp_path}/new.db", *QUICK
    )
    assert "cannot read" in refused("channel", "import", str(tmp_path / "x"), "--log", no)
    assert "cannot write" in refused("channel", "export", str(tmp_path / "no" / "x"), "--log", old)
    assert files(tmp_path) == before


def test_exports_that_do_not_fit_create_nothing(tmp_path: Path, old: str):
    file, new = tmp_path / "backup", f"sqlite:{tmp_path}/new.db"
    done("channel", "export", str(file), "--log", old)
    assert "not 'standalone': correct --cluster" in refused("channel", "import", str(file), "--log", new)
    old_generation = ("--generation", "2")
    assert "tokens would go back" in refused("channel", "import", str(file), "--log", new, *old_generation, *QUICK)
    assert "above 9999" in refused("channel", "import", str(file), "--log", new, "--generation", "10000", *QUICK)
    whole = file.read_bytes()
    for spoilt in (whole[:-1], whole[: len(whole) // 2], whole.replace(b"shop/orders", b"shop/borders")):
        file.write_bytes(spoilt)
        assert "damaged or truncated" in refused("channel", "import", str(file), "--log", new, *QUICK)
    file.write_bytes(b"")
    assert "not an export" in refused("channel", "import", str(file), "--log", new, *QUICK)
    assert not (tmp_path / "new.db").exists()


def test_a_log_in_use_is_refused_with_what_stands_there(tmp_path: Path, old: str):
    file = tmp_path / "backup"
    done("channel", "export", str(file), "--log", old)
    told = refused("channel", "import", str(file), "--log", old, *QUICK)
    assert "is not empty: it belongs to cluster 'shop', generation 3" in told


def test_cluster_moves_to_another_file_and_back_under_later_generations(tmp_path: Path, old: str):
    second, third = f"sqlite:{tmp_path}/second.db", f"sqlite:{tmp_path}/third.db"
    result = done("migrate", "--from-log", old, "--log", second, *QUICK)
    assert "old.db is closed for good" in result.stderr
    assert "generation 4 of cluster shop" in result.stderr
    answer = done("migrate", "--from-log", second, "--log", third, *QUICK, "-o", "json")
    moved = json.loads(answer.stdout)
    assert (moved["generation"], moved["bundles"], moved["owners"]) == (5, 11, {"a:1": 4, "b:1": 4})
    assert owners(table_of(tmp_path / "third.db")) == owners(two_namespaces().table)
    assert "was moved to" in refused("migrate", "--from-log", old, "--log", third, *QUICK)
    assert "an earlier run did this already" in done("migrate", "--from-log", old, "--log", second, *QUICK).stderr


def test_moved_log_is_not_backed_up_again_unless_the_new_one_is_lost(tmp_path: Path, old: str):
    second, file = f"sqlite:{tmp_path}/second.db", tmp_path / "backup"
    done("channel", "export", str(file), "--log", old)
    before = file.read_bytes()
    done("migrate", "--from-log", old, "--log", second, *QUICK)
    told = refused("channel", "export", str(file), "--replace", "--log", old)
    assert f"moved to {second}. Export from there" in told
    assert file.read_bytes() == before
    done("channel", "export", str(file), "--replace", "--closed", "--log", old)
    done("channel", "import", str(file), "--log", f"sqlite:{tmp_path}/third.db", *QUICK)
    table = table_of(tmp_path / "third.db")
    assert table.cluster_identity is not None
    assert table.cluster_identity.generation == 5, "second.db gave out tokens of 4"
    assert owners(table) == owners(two_namespaces().table)


def contents(directory: Path) -> dict[str, list[str]]:
    """What the databases there hold: their bytes change whenever they are opened."""
    found: dict[str, list[str]] = {}
    for name in files(directory):
        with closing(sqlite3.connect(directory / name)) as database:
            found[name] = list(database.iterdump())
    return found


def test_a_dry_run_of_a_move_says_what_would_move_and_touches_nothing(tmp_path: Path, old: str):
    new = f"sqlite:{tmp_path}/new.db"
    done("channel", "export", str(tmp_path.parent / f"{tmp_path.name}.backup"), "--log", old)  # now it has all topics
    before = contents(tmp_path)
    move = ("migrate", "--from-log", old, "--log", new, *QUICK)
    assert f"without --dry-run 11 bundles would move from {old} to {new}" in done(*move, "--dry-run").stdout
    facts = json.loads(done(*move, "--dry-run", "-o", "json").stdout)
    assert facts == {"dry_run": True, "bundles": 11, "from": old, "to": new}
    assert contents(tmp_path) == before
    done(*move)
    third = ("migrate", "--log", f"sqlite:{tmp_path}/third.db", *QUICK, "--from-log")
    assert "11 bundles would move" in done(*third, new, "--dry-run").stdout
    told = refused(*third, old, "--dry-run")
    assert not (tmp_path / "third.db").exists()
    assert told == refused(*third, old), "it was moved already"


def test_a_dry_run_of_an_import_says_what_would_be_there(tmp_path: Path, old: str):
    file, new = tmp_path / "backup", f"sqlite:{tmp_path}/new.db"
    done("channel", "export", str(file), "--log", old)
    file = file.rename(tmp_path.parent / f"{tmp_path.name}.backup")
    before = contents(tmp_path)
    told = done("channel", "import", str(file), "--log", new, *QUICK, "--dry-run")
    assert f"without --dry-run 11 bundles of shop would be in {new}" in told.stdout
    facts = json.loads(
        done(
            "channel", "import", str(file), "--log", new, *QUICK, "--dry-run", "-o", "json", "--generation", "7"
        ).stdout
    )
    assert facts == {"dry_run": True, "log": new, "cluster": "shop", "generation": 7, "bundles": 11}
    assert "not 'standalone'" in refused("channel", "import", str(file), "--log", new, "--dry-run")
    in_use = ("channel", "import", str(file), "--log", old, *QUICK)
    assert refused(*in_use, "--dry-run").splitlines()[-1] == refused(*in_use).splitlines()[-1]
    assert contents(tmp_path) == before


def test_moving_to_where_it_is_makes_no_sense(tmp_path: Path, old: str):
    assert "the channel is in" in refused("migrate", "--from-log", old, "--log", old, *QUICK)
    same = ("--coordination", f"{old}.coordination")
    told = refused("migrate", "--from-log", old, "--log", f"sqlite:{tmp_path}/new.db", *same, *QUICK)
    assert "belongs to the old log: name another with --coordination" in told
    assert not (tmp_path / "new.db").exists()


def test_an_address_says_also_under_which_prefix_the_topics_are():
    assert log_of(Settings(log="sqlite:x.db", topic_prefix="b.")) == "sqlite:x.db"
    assert log_of(Settings(log="kafka://k:1")) == "kafka://k:1"
    assert log_of(Settings(log="kafka://k:1", topic_prefix="b.")) == "kafka://k:1 --set topic_prefix=b."


def test_a_restore_fences_what_may_be_left_of_the_old_cluster(tmp_path: Path, old: str):
    file, before = tmp_path / "backup", ("--from-coordination", f"{old}.coordination")
    done("channel", "export", str(file), "--log", old)

    async def number_of(name: str, *, register: bool = False) -> tuple[int, Result]:
        coordination = SqliteCoordination(tmp_path / "old.db.coordination")
        await coordination.start(5)
        broker = await coordination.start_incarnation(name, 0)
        if register:
            await coordination.register(broker, b"")
        arguments = ("channel", "import", str(file), "--log", f"sqlite:{tmp_path}/new.db", *before, *QUICK)
        try:
            return broker.incarnation, await asyncio.to_thread(loadmanager, *arguments)
        finally:
            await coordination.close()

    _, result = asyncio.run(number_of("b:1", register=True))
    assert (result.exit_code, "b:1. Stop these brokers" in result.output) == (1, True), result.output
    first, result = asyncio.run(number_of("a:1"))
    assert result.exit_code == 0, result.output
    assert "until no proof of the old cluster counts" in result.stderr
    second, _ = asyncio.run(number_of("a:1"))
    assert second > first + 1, "its number was raised in between"


def test_a_setting_of_the_old_cluster_alone_is_given_apart(tmp_path: Path, old: str):
    told = refused("migrate", "--from-log", old, "--log", f"sqlite:{tmp_path}/new.db", "--from-set", "cluster=shop")
    assert "is of cluster 'shop', not 'standalone'" in told
    unknown = ("--from-set", "magic=1")
    assert "magic" in refused("migrate", "--from-log", old, "--log", f"sqlite:{tmp_path}/new.db", *unknown, code=2)


def test_a_target_that_cannot_be_reached_is_seen_before_anything_is_touched(tmp_path: Path, old: str):
    target = ("--log", "kafka://127.0.0.1:1", "--coordination", "zookeeper://127.0.0.1:1", "--development")
    told = refused("migrate", "--from-log", old, *target, *QUICK, "--set", "start_timeout_s=1")
    assert "the new stores are not ready" in told
    assert table_of(tmp_path / "old.db").retired(0) is None


def test_brokers_that_are_registered_are_named(tmp_path: Path, old: str):
    async def registered() -> Result:
        coordination = SqliteCoordination(tmp_path / "old.db.coordination")
        await coordination.start(5)
        await coordination.register(await coordination.start_incarnation("a:1", 0), b"")
        try:
            return await asyncio.to_thread(
                loadmanager, "migrate", "--from-log", old, "--log", f"sqlite:{tmp_path}/new.db", *QUICK
            )
        finally:
            await coordination.close()

    result = asyncio.run(registered())
    assert result.exit_code == 1
    assert "registered in" in result.output
    assert ": a:1. Stop these brokers" in result.output
    assert table_of(tmp_path / "old.db").retired(0) is None


def test_an_empty_log_has_nothing_to_export(tmp_path: Path):
    async def make() -> None:
        log = SqliteLog(tmp_path / "empty.db")
        await log.start(5)
        await log.close()

    asyncio.run(make())
    told = refused("channel", "export", str(tmp_path / "x"), "--log", f"sqlite:{tmp_path}/empty.db")
    assert "belongs to no cluster" in told


def test_without_a_backup_an_empty_log_of_a_later_generation_begins(tmp_path: Path):
    new = tmp_path / "new.db"
    again = ("channel", "import", "--empty", "--generation", "4", "--log", f"sqlite:{new}", *QUICK)
    assert "generation  4" in done(*again).stdout
    assert "an earlier run did this already" in done(*again).stderr
    table = table_of(new)
    assert table.cluster_identity is not None
    assert (table.cluster_identity.cluster, table.cluster_identity.generation, len(table)) == ("shop", 4, 0)


def test_an_empty_log_needs_a_generation_and_no_file(tmp_path: Path):
    where = ("--log", f"sqlite:{tmp_path}/new.db", *QUICK)
    assert "their first four digits" in refused("channel", "import", "--empty", *where, code=2)
    both = ("channel", "import", str(tmp_path / "x"), "--empty", "--generation", "4")
    assert "give the FILE of a backup, or --empty" in refused(*both, *where, code=2)
    assert "give the FILE of a backup, or --empty" in refused("channel", "import", *where, code=2)
    assert files(tmp_path) == set()


def test_an_empty_log_has_a_later_generation_than_the_one_that_its_root_knew(tmp_path: Path, old: str):
    where = ("--log", f"sqlite:{tmp_path}/new.db", "--from-coordination", f"{old}.coordination", *QUICK)
    done("channel", "import", "--empty", "--generation", "1", *where)
    assert table_of(tmp_path / "new.db").cluster_identity is not None
