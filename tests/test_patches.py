"""Nothing is mocked: a test may set a constant, mostly a bound or a time-out. Every other patch has its reason here.

Settings of the environment and libraries that are absent (`sys.modules`) count as no patch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]+")

COUNTS = "it counts the calls, or notes their arguments, and passes them on"
MOMENT = "it passes the call on; something else happens just before or after it, in the moment that matters"

PATCHES = {
    "tests/api/access/test_audit.py: journal.Journal.append": "a log that takes the change and not its audit entry",
    "tests/api/access/test_audit.py: states._about": "a bug of ours",
    "tests/api/access/test_gate.py: time.monotonic": MOMENT,
    "tests/api/test_backlog.py: backlogs.open_group_offsets": "offsets that are told; test_kafka.py has a Kafka's",
    "tests/api/test_brokers.py: node._judge": "else the next news of the members clears the suspicion",
    "tests/api/test_channel_status.py: SqliteLog.read": COUNTS,
    "tests/api/test_channel_status.py: Watching.begin": COUNTS,
    "tests/api/test_endpoints.py: inspect.signature": COUNTS,
    "tests/api/test_endpoints.py: application.laid_out": "a machine that has no memory for the routes at that moment",
    "tests/api/conftest.py: Connection.data_received": COUNTS,
    "tests/api/test_lookup_protocol.py: LookupPath.__call__": COUNTS,
    "tests/api/test_lookup_protocol.py: RequestResponseCycle.send": COUNTS,
    "tests/api/test_operations.py: log.end": "a log that takes the change and not the end of its operation",
    "tests/api/test_operations.py: reader.append": "a log that takes no operation, and everything else",
    "tests/api/test_pulsar_brokers.py: Host.load": "the service of the fixture names no keys",
    "tests/history/ingest/test_exactly_once.py: Lake.add": "a run dies before this commit: no fault can be timed so",
    "tests/history/ingest/test_exactly_once.py: Lake.append": "a run dies before this append: Spark has no such fault",
    "tests/history/ingest/test_exactly_once.py: Lake.folder": "a file system that only Spark writes to",
    "tests/history/ingest/test_exactly_once.py: Lake.keeps_writers_apart": "as on S3, and as elsewhere",
    "tests/history/report/test_commands.py: loadmanager_api.cli.load_history.analyse.taken": MOMENT,
    "tests/integration/long_life/traps.py: owner.method": MOMENT,
    "tests/integration/test_zookeeper_coordination.py: client._leases._read": MOMENT,
    "tests/loadmanager/broker/test_placing.py: OwnershipTable.flights": COUNTS,
    "tests/loadmanager/broker/test_placing.py: Roster.candidates": COUNTS,
    "tests/loadmanager/broker/test_proof_clock.py: time.clock_gettime": "no virtual machine, so no clock of a host",
    "tests/loadmanager/broker/test_work_of_a_change.py: Created.entry": COUNTS,
    "tests/loadmanager/broker/test_work_of_a_change.py: OwnershipTable.get": COUNTS,
    "tests/loadmanager/broker/test_work_of_a_change.py: Pattern.matches": COUNTS,
    "tests/loadmanager/broker/test_work_of_a_change.py: Quarantine._take_back": COUNTS,
    "tests/loadmanager/broker/test_work_of_a_turn.py: Created.entry": COUNTS,
    "tests/loadmanager/broker/test_work_of_a_turn.py: Namespace.touched": COUNTS,
    "tests/loadmanager/channel/test_agreeing.py: port.name": MOMENT,
    "tests/loadmanager/client/test_client.py: router.directory.locate": "an answer and a request in one turn of a loop",
    "tests/loadmanager/cluster/test_suspicion.py: loadmanager.cluster.suspicion.Ring": COUNTS,
    "tests/loadmanager/diagnostics/test_check_sqlite.py: sqlite_audit.os.statvfs": "a disk that is nearly full",
    "tests/loadmanager/leader/rebalancing/test_running_plans.py: DutyExecutor.move": (
        "the channel refuses a legal move in a race only, and never so often"
    ),
    "tests/loadmanager/strategies/placement/test_batching.py: module.estimate": COUNTS,
}
"""`file: what is patched`, and why it is patched."""

MUTATIONS = {
    "tests/simulation/protocol_bugs.py",
    "tests/simulation/snapshot_bugs.py",
    "tests/simulation/test_scripted.py",
    "tests/statechannel/mutation.py",
}
"""These put a bug into the code on purpose, or take a check out: a test has to notice."""

REPLACED = {
    "tests/api/test_own_routes.py: node.world.log.append": "a log that is late",
    "tests/contracts/test_sqlite_log_years.py: reader._refresh_extents": "a file that cannot be read",
    "tests/integration/long_life/traps.py: control.dependencies": "a log and a coordination service that can be killed",
    "tests/integration/test_kafka_exclusive.py: transactions._end": MOMENT,
    "tests/integration/test_zookeeper_coordination.py: client._session.read": COUNTS,
    "tests/integration/test_zookeeper_watching.py: follower._session._ask": COUNTS,
    "tests/loadmanager/broker/test_node.py: core.leader._rebalance": "a bug of ours that no strategy can cause",
    "tests/loadmanager/broker/test_node.py: direction._latency_s": "a link with a latency of its own",
    "tests/loadmanager/broker/test_node.py: membership.saw_members": COUNTS,
    "tests/loadmanager/broker/test_node.py: world.coordination_client": "a link with a latency of its own",
    "tests/loadmanager/broker/test_node.py: world.log.attach": "a log that answers and sends nothing to new readers",
    "tests/loadmanager/broker/test_placing.py: channel.table.get": COUNTS,
    "tests/loadmanager/broker/test_proving.py: one.proofs.coordination_proved": COUNTS,
    "tests/loadmanager/channel/migration/test_folding.py: folded.log.append": COUNTS,
    "tests/loadmanager/channel/migration/test_folding.py: place.log.read": "a log that is late, or has no end",
    "tests/loadmanager/channel/migration/test_importing.py: place.log.append": COUNTS,
    "tests/loadmanager/channel/migration/test_migrating.py: new.log.append": "a log that takes nothing",
    "tests/loadmanager/channel/migration/test_migrating.py: old.coordination.start_incarnation": MOMENT,
    "tests/loadmanager/channel/migration/test_migrating.py: place.coordination.identify": MOMENT,
    "tests/loadmanager/channel/migration/test_migrating.py: place.coordination.start_incarnation": MOMENT,
    "tests/loadmanager/channel/migration/test_migrating.py: place.log.append": MOMENT,
    "tests/loadmanager/channel/owner/test_keeper.py: a.keeper._writer.commit": "a commit that is late",
    "tests/loadmanager/channel/owner/test_readers.py: d.view.put": MOMENT,
    "tests/loadmanager/channel/owner/test_service.py: broken.node.world.log.exclusive": "a log with a bug",
    "tests/loadmanager/leader/rebalancing/test_vetting.py: strategy.decide": "the strategy of the test itself",
    "tests/loadmanager/leader/splitting/test_splitting.py: b.node.current.agent._begin_asking_keys": "an idle owner",
    "tests/loadmanager/leader/test_rebalancing.py: leader.node.decisions.append": "a log that takes no decision",
    "tests/loadmanager/leader/test_rebalancing.py: leader.node.plans.all": "a bug of ours that no input can cause",
    "tests/loadmanager/leader/test_service.py: log.append": "a log that takes nothing, but can be read",
    "tests/statechannel/test_service.py: channel._log.append": "a log that takes nothing",
    "tests/statechannel/test_service.py: world.log.append": COUNTS,
}
"""`file: the method of one object that is replaced`, mostly of a port, and why."""

HOOKS = {"after_callback", "before_exclusive", "meanwhile", "on_step", "on_trim", "rounds", "seen", "settings"}
"""Attributes of simulated servers, of test doubles and of settings that a test is meant to set."""


def files() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def patches(source: str) -> Iterator[str]:
    """What is patched that is no constant."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        match called, *node.args:
            case "setattr" | "delattr", ast.Constant(value=str(place)), *_:
                target = place
            case "setattr" | "delattr", place, ast.Constant(value=str(name)), *_:
                target = f"{ast.unparse(place)}.{name}"
            case "setattr" | "delattr", place, name, *_:
                target = f"{ast.unparse(place)}.{ast.unparse(name)}"
            case "setitem" | "delitem", place, *_ if ast.unparse(place) != "sys.modules":
                target = ast.unparse(place)
            case "patch" | "Mock" | "MagicMock" | "AsyncMock", *_:
                target = ast.unparse(node)
            case _:
                continue
        if not CONSTANT.fullmatch(target.rpartition(".")[2]):
            yield target


def replaced(source: str) -> Iterator[str]:
    """Methods that are assigned: `log.append = refuse`. A host belongs to its test, and so does `self`."""
    tree = ast.parse(source)
    ours = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Attribute(value=owner, attr=attribute) as target], value=value):
                its_own = ast.unparse(owner) == "self" or ast.unparse(owner).endswith("host") or attribute in HOOKS
                made = isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in ours)
                if made and not its_own:
                    yield ast.unparse(target)
            case _:
                pass


def test_what_is_patched_is_a_constant_or_is_listed():
    found = {f"{name}: {target}" for name, text in files() if name not in MUTATIONS for target in patches(text)}
    assert found - PATCHES.keys() == set(), "use the real thing, or list these with their reason"
    assert PATCHES.keys() - found == set(), "these patch nothing any more: take them out of the list"


def test_what_is_replaced_in_an_object_is_listed():
    found = {f"{name}: {target}" for name, text in files() if name not in MUTATIONS for target in replaced(text)}
    assert found - REPLACED.keys() == set(), "give the object another port or host, or list these with their reason"
    assert REPLACED.keys() - found == set(), "these replace nothing any more: take them out of the list"


def test_defaults_of_functions_are_never_patched():
    assert [name for name, text in files() if "__" + "defaults__" in text] == [], "pass the argument"


@pytest.mark.parametrize(
    "source",
    [
        "monkeypatch.setattr(Keeper, 'attend', fail)",
        "patch.setattr('loadmanager.cluster.suspicion.Ring', counted)",
        "setattr(port, name, counted)",
        "with monkeypatch.context() as p: p.setattr(a.b, 'lower', 1)",
        "monkeypatch.setitem(registry, 'name', 1)",
        "mock.patch('a.b')",
        "AsyncMock(spec=Log)",
    ],
)
def test_a_patch_of_behaviour_is_seen(source: str):
    assert list(patches(source))


@pytest.mark.parametrize(
    "source",
    [
        "monkeypatch.setattr(recent, 'CHANGES_KEPT', 3)",
        "monkeypatch.setattr('loadmanager.embedding.control.STOP_GRACE_S', 0.2)",
        "monkeypatch.setattr(topic_reader, '_SETTLED_S', 0.01)",
        "monkeypatch.setitem(sys.modules, 'kazoo', None)",
        "monkeypatch.setitem(TABLES, 'audit', older)",
        "monkeypatch.setenv('TZ', 'UTC')",
    ],
)
def test_a_constant_is_let_through(source: str):
    assert not list(patches(source))
