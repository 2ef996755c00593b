"""What every fenced store owes: nobody writes under a token that was replaced, whatever came between."""

from __future__ import annotations

import itertools
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import DictRow, dict_row

from loadmanager import NotServing
from loadmanager.broker.serving import Claim
from loadmanager.fencing import FencedOut, PostgresStore, RedisStore, SqliteStore
from loadmanager.fencing.fences import Fences, SqlStore
from stack.stores import PostgresServer, RedisServer
from statechannel.law.bundle import FULL_UPPER, Bundle, Key
from statechannel.law.record import Token
from tests.contracts.fencing_backends import BACKENDS, Backend, SqlBackend

ROOT = Path(__file__).parents[2]
SLICES = 8
EDGES = [*(i << 29 for i in range(SLICES)), FULL_UPPER]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Generator[Backend]:
    with request.param(request) as it:
        yield it


@pytest.fixture
def namespace() -> str:
    return f"fences/{uuid.uuid4().hex[:8]}"


def token(offset: int, generation: int = 0) -> Token:
    return Token(generation, 3, offset)


def claim(namespace: str, first: int, last: int, offset: int) -> Claim:
    """Of the slices `[first, last)`."""
    return Claim(Bundle(namespace, EDGES[first], EDGES[last]), token(offset))


def key(namespace: str, slot: int) -> str:
    """A key that falls into the slice."""
    bundle = Bundle(namespace, EDGES[slot], EDGES[slot + 1])
    return next(name for i in itertools.count() if (name := f"persistent://{namespace}/key-{i}") in bundle)


def refused(work: Callable[[], object]) -> FencedOut:
    with pytest.raises(FencedOut) as caught:
        work()
    return caught.value


def stored(backend: Backend, namespace: str, offset: int) -> dict[int, int]:
    """All counters, as the next owner of everything finds them."""
    return backend.raise_and_load(claim(namespace, 0, SLICES, offset))


@pytest.mark.slow
def test_a_transfer_refuses_the_former_owner_and_names_the_token_that_stands(backend: Backend, namespace: str):
    old, new, name = claim(namespace, 0, 8, 5), claim(namespace, 0, 8, 9), key(namespace, 2)
    assert backend.raise_and_load(old) == {}
    backend.write(old, name, 1)
    assert backend.raise_and_load(new) == {Key.parse(name).position: 1}
    assert refused(lambda: backend.write(old, name, 2)).stored == token(9)
    assert refused(lambda: backend.raise_and_load(old)).stored == token(9)
    backend.write(new, name, 3)
    assert stored(backend, namespace, 10) == {Key.parse(name).position: 3}


def test_a_write_before_the_fence_is_raised_is_refused(backend: Backend, namespace: str):
    name = key(namespace, 2)
    error = refused(lambda: backend.write(claim(namespace, 0, 4, 5), name, 1))
    assert error.stored is None
    assert "raise it before you load" in str(error)
    backend.raise_and_load(claim(namespace, 0, 4, 5))
    error = refused(lambda: backend.write(claim(namespace, 0, 4, 6), name, 1))
    assert error.stored == token(5)
    assert "raise it before you load" in str(error)
    assert refused(lambda: backend.write(claim(namespace, 4, 8, 5), key(namespace, 5), 1)).stored is None
    assert stored(backend, namespace, 10) == {}
    assert isinstance(error, NotServing), "a client that is told so looks for the owner"


def test_a_split_leaves_each_part_with_its_own_token(backend: Backend, namespace: str):
    parent, child = claim(namespace, 0, 8, 5), claim(namespace, 2, 5, 7)
    backend.raise_and_load(parent)
    backend.raise_and_load(child)
    for slot in range(SLICES):
        if 2 <= slot < 5:
            assert refused(lambda slot=slot: backend.write(parent, key(namespace, slot), 1)).stored == token(7)
            backend.write(child, key(namespace, slot), 2)
        else:
            backend.write(parent, key(namespace, slot), 1)
    assert refused(lambda: backend.raise_and_load(parent)).stored == token(7)
    assert sorted(stored(backend, namespace, 10).values()) == [1] * 5 + [2] * 3


def test_a_merge_replaces_the_tokens_of_all_parts(backend: Backend, namespace: str):
    parts = [claim(namespace, 0, 2, 5), claim(namespace, 2, 4, 8), claim(namespace, 4, 8, 6)]
    for part in parts:
        backend.raise_and_load(part)
    whole = claim(namespace, 0, 4, 9)
    backend.raise_and_load(whole)
    for part, slot in zip(parts[:2], (1, 3), strict=True):
        assert refused(lambda part=part, slot=slot: backend.write(part, key(namespace, slot), 1)).stored == token(9)
        backend.write(whole, key(namespace, slot), 2)
    backend.write(parts[2], key(namespace, 4), 3)
    assert refused(lambda: backend.raise_and_load(claim(namespace, 1, 8, 7))).stored == token(9)
    assert sorted(stored(backend, namespace, 10).values()) == [2, 2, 3]


def test_the_same_token_is_raised_again_for_its_own_range_only(backend: Backend, namespace: str):
    own = claim(namespace, 2, 4, 5)
    backend.raise_and_load(own)
    backend.write(own, key(namespace, 3), 1)
    assert len(backend.raise_and_load(own)) == 1, "as after an abandon"
    backend.raise_and_load(claim(namespace, 4, 6, 5))  # the other child of one split
    for first, last in ((2, 3), (0, 4), (3, 6), (0, 8)):
        error = refused(lambda first=first, last=last: backend.raise_and_load(claim(namespace, first, last, 5)))
        assert error.stored == token(5)
        assert "another range" in str(error)
    backend.write(own, key(namespace, 2), 1)


def test_tokens_compare_by_generation_then_partition_then_offset(backend: Backend, namespace: str):
    whole, name = Bundle(namespace, 0, FULL_UPPER), key(namespace, 1)
    tokens = [Token(0, 1, 999_999), Token(0, 2, 5), Token(0, 10, 4), Token(1, 0, 0), Token(2, 0, 9), Token(10, 0, 1)]
    for lower, higher in itertools.pairwise(tokens):
        backend.raise_and_load(Claim(whole, higher))
        assert refused(lambda lower=lower: backend.raise_and_load(Claim(whole, lower))).stored == higher
        assert refused(lambda lower=lower: backend.write(Claim(whole, lower), name, 1)).stored == higher


def test_the_last_position_of_the_ring_is_fenced(backend: Backend, namespace: str):
    bundle = Bundle(namespace, 0xFFFFFF00, FULL_UPPER)
    last = Key(namespace, f"persistent://{namespace}/last", FULL_UPPER)
    backend.raise_and_load(Claim(bundle, token(5)))
    assert not isinstance(backend, SqlBackend) or _check(backend, Claim(bundle, token(5)), last) is None
    below = claim(namespace, 0, 8, 9)
    backend.raise_and_load(below)
    if isinstance(backend, SqlBackend):
        assert refused(lambda: _check(backend, Claim(bundle, token(5)), last)).stored == token(9)


def _check(backend: SqlBackend, claim: Claim, key: Key) -> None:
    with backend.store.writing(claim, key):
        pass


def test_namespaces_have_fences_of_their_own(backend: Backend, namespace: str):
    other = f"{namespace}-2"
    backend.raise_and_load(claim(namespace, 0, 8, 9))
    backend.raise_and_load(claim(other, 0, 8, 5))
    backend.write(claim(other, 0, 8, 5), key(other, 1), 1)
    backend.write(claim(namespace, 0, 8, 9), key(namespace, 1), 2)
    assert list(stored(backend, other, 6).values()) == [1]
    assert list(stored(backend, namespace, 10).values()) == [2]


def test_a_key_of_another_bundle_or_namespace_is_refused_at_once(backend: Backend, namespace: str):
    own = claim(namespace, 0, 4, 5)
    backend.raise_and_load(own)
    for foreign in (key(namespace, 6), key(f"{namespace}-2", 1)):
        with pytest.raises(ValueError, match="under the claim that admitted it"):
            backend.write(own, foreign, 1)


# --- races


@pytest.mark.parametrize("at", ["begun", "checked", "written"])
def test_write_of_the_former_owner_during_a_raise_is_loaded_or_refused(backend: Backend, namespace: str, at: str):
    """The new owner raises the fence at each step of the former owner's write. It waits, or the write is refused."""
    old, new, name = claim(namespace, 0, 8, 5), claim(namespace, 2, 5, 9), key(namespace, 3)
    backend.raise_and_load(old)
    with ThreadPoolExecutor(1) as successor:
        loading: Any = None

        def step(done: str) -> None:
            nonlocal loading
            if done == at:
                loading = successor.submit(backend.raise_and_load, new)
                if at == "begun":  # a store that need not wait does not
                    threading.Event().wait(0.2)

        stored = None
        try:
            backend.write(old, name, 1, step)
        except FencedOut as error:
            stored = error.stored
        if loading is None:
            loading = successor.submit(backend.raise_and_load, new)
        assert bool(loading.result(60)) == (stored is None)
        assert stored in (None, token(9))


def test_many_owners_at_once_lose_no_update(backend: Backend, namespace: str):
    """Each thread is one owner after another: it raises its token over some range, loads, and counts up from memory. If
    any write of a former owner passed after its successor loaded, a value would be written twice."""
    tokens, lock, names = itertools.count(1), threading.Lock(), [key(namespace, slot) for slot in range(SLICES)]
    written: Counter[tuple[str, int]] = Counter()
    kinds: Counter[str] = Counter()
    begin = threading.Barrier(8)

    def own(seed: int) -> None:
        dice = random.Random(seed)
        begin.wait()
        for _ in range(25):
            first, last = sorted(dice.sample(range(SLICES + 1), 2))
            with lock:
                mine = claim(namespace, first, last, next(tokens))
            try:
                counters = backend.raise_and_load(mine)
                kinds["raised"] += 1
                for _ in range(20):
                    slot = dice.randrange(first, last)
                    position = Key.parse(names[slot]).position
                    value = counters.get(position, 0) + 1
                    backend.write(mine, names[slot], value)
                    counters[position] = value
                    with lock:
                        written[names[slot], value] += 1
            except FencedOut as error:
                kinds["fenced out"] += error.stored is not None and error.stored > mine.token
                kinds["otherwise"] += error.stored is None or error.stored <= mine.token

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(own, range(8)))
    final = stored(backend, namespace, next(tokens))
    assert max(written.values()) == 1, "two owners counted from the same value"
    for name in names:
        count = sum(1 for each, _ in written if each == name)
        assert final.get(Key.parse(name).position, 0) == count
    assert kinds["otherwise"] == 0
    assert kinds["raised"] > 20
    assert kinds["fenced out"] > 20


def sql_store(kind: str, where: str, **of_postgresql: Any) -> SqlStore[Any]:
    return SqliteStore(where) if kind == "sqlite" else PostgresStore(where, **of_postgresql)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_an_owner_that_is_killed_within_a_write_leaves_nothing_of_it(
    request: pytest.FixtureRequest, tmp_path: Path, namespace: str, kind: str
):
    """A real process raises the fence, writes, and dies by SIGKILL before it commits."""
    where = str(tmp_path / "killed.db") if kind == "sqlite" else request.getfixturevalue("postgres_server").url
    table = f"written_{uuid.uuid4().hex[:8]}"
    command = [sys.executable, "-m", "tests.contracts.fencing_process", kind, where, namespace, table]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    with sql_store(kind, where) as store:
        with store.raising(claim(namespace, 0, 8, 9)) as cursor:
            assert cursor.execute(f"SELECT value FROM {table}").fetchall() == [(1,)]
        with pytest.raises(FencedOut), store.writing(claim(namespace, 0, 8, 5), key(namespace, 1)):
            pass


# --- any history, against a model

ranges = st.tuples(st.integers(0, SLICES - 1), st.integers(1, SLICES)).filter(lambda pair: pair[0] < pair[1])
steps = st.lists(
    st.tuples(st.sampled_from(["raise", "write"]), st.integers(0, 5), st.integers(0, SLICES - 1)), max_size=40
)
claims = st.lists(st.tuples(ranges, st.integers(1, 5)), min_size=6, max_size=6)


class Model:
    """The ring in slices: of each the token and the claim that raised it, as one cut at a time leaves it."""

    def __init__(self) -> None:
        self.tiles: list[tuple[int, int, int]] = []

    def raise_(self, first: int, last: int, offset: int) -> int | None:
        """The token that refuses it."""
        over = [tile for tile in self.tiles if tile[0] < last and first < tile[1]]
        if over == [(first, last, offset)]:
            return None
        highest = max((known for _, _, known in over), default=0)
        if highest >= offset:
            return highest
        slices = {slot: (tile, tile[2]) for tile in self.tiles for slot in range(tile[0], tile[1])}
        slices.update(dict.fromkeys(range(first, last), ((first, last, offset), offset)))
        runs = itertools.groupby(sorted(slices), key=lambda slot: (slices[slot], slot < first, slot >= last))
        self.tiles = [(run[0], run[-1] + 1, known) for ((_, known), _, _), slots in runs if (run := list(slots))]
        return None

    def at(self, slot: int) -> int | None:
        return next((known for first, last, known in self.tiles if first <= slot < last), None)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(claims=claims, steps=steps)
def test_any_history_goes_as_in_the_model(backend: Backend, claims: Any, steps: Any):
    namespace, model = f"fences/{uuid.uuid4().hex[:8]}", Model()
    values: dict[int, int] = {}
    names = [key(namespace, slot) for slot in range(SLICES)]
    for number, (what, which, slot) in enumerate(steps):
        (first, last), offset = claims[which]
        mine = claim(namespace, first, last, offset)
        if what == "raise":
            refusal = model.raise_(first, last, offset)
            if refusal is None:
                loaded = backend.raise_and_load(mine)
                assert loaded == {place: value for place, value in values.items() if place in mine.bundle}
            else:
                assert refused(lambda mine=mine: backend.raise_and_load(mine)).stored == token(refusal)
        elif first <= slot < last:
            if model.at(slot) == offset:
                backend.write(mine, names[slot], number)
                values[Key.parse(names[slot]).position] = number
            else:
                stored = refused(lambda mine=mine, slot=slot: backend.write(mine, names[slot], 0)).stored
                assert (stored and stored.offset) == model.at(slot)


# --- of one kind


@pytest.mark.postgresql
def test_owner_that_stops_within_a_write_delays_its_successor_briefly(postgres_server: PostgresServer, namespace: str):
    old, new, name = claim(namespace, 0, 8, 5), claim(namespace, 0, 8, 9), key(namespace, 1)
    with PostgresStore(postgres_server.url, idle_timeout_s=0.3) as store:
        SqlBackend(store, "%s", "stopped")
        with store.raising(old):
            pass

        def write_and_stop() -> None:
            with store.writing(old, name) as cursor:
                cursor.execute("INSERT INTO stopped (namespace, position, value) VALUES (%s, 1, 1)", (namespace,))
                with store.raising(new) as later:
                    assert later.execute("SELECT 1 FROM stopped WHERE namespace = %s", (namespace,)).fetchall() == []

        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            write_and_stop()


@pytest.mark.postgresql
def test_an_owner_that_stops_while_it_loads_delays_its_successor_briefly(
    postgres_server: PostgresServer, namespace: str
):
    old, new = claim(namespace, 0, 8, 5), claim(namespace, 0, 8, 9)
    with PostgresStore(postgres_server.url, idle_timeout_s=0.5) as store:
        store.create()

        def load_and_stop() -> None:
            with store.raising(old) as cursor:
                # more rows than the buffers of both ends take, and they are not read
                cursor.connection.pgconn.send_query(b"SELECT repeat('x', 1000) FROM generate_series(1, 1000000)")
                with store.raising(new):
                    pass

        with pytest.raises(psycopg.OperationalError):
            load_and_stop()
        with pytest.raises(FencedOut), store.raising(old):
            pass


@pytest.mark.postgresql
def test_connections_may_be_the_services_own_with_its_rows_and_isolation(
    postgres_server: PostgresServer, namespace: str
):
    options = "-c default_transaction_isolation=serializable"
    own, name = claim(namespace, 0, 8, 5), key(namespace, 1)
    connect = psycopg.Connection[DictRow].connect
    store = PostgresStore(lambda: connect(postgres_server.url, row_factory=dict_row, options=options))
    with store:
        store.create()
        with store.raising(own) as cursor:
            shown = cursor.execute("SELECT current_setting('transaction_isolation') AS level").fetchone()
            assert shown == {"level": "read committed"}
        with store.writing(own, name) as cursor:
            assert cursor.execute("SELECT 1 AS one").fetchone() == {"one": 1}


@pytest.mark.postgresql
def test_several_services_may_create_the_table_at_the_same_moment(postgres_server: PostgresServer):
    table = f"fence_{uuid.uuid4().hex[:8]}"
    with PostgresStore(postgres_server.url, table=table) as store, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: store.create(), range(8)))


def test_several_processes_may_create_the_file_at_the_same_moment(tmp_path: Path):
    stores = [SqliteStore(tmp_path / "new.db") for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(SqliteStore.create, stores))
    for store in stores:
        store.close()


def test_a_transaction_within_another_one_is_refused_at_once(tmp_path: Path, namespace: str):
    with SqliteStore(tmp_path / "nested.db") as store:
        store.create()
        with store.raising(claim(namespace, 0, 8, 5)), pytest.raises(RuntimeError, match="use its cursor"):
            store.create()
        store.create()


def test_a_former_owner_that_is_stopped_within_a_write_is_named_after_the_deadline(tmp_path: Path, namespace: str):
    path = str(tmp_path / "stopped.db")
    command = [sys.executable, "-m", "tests.contracts.fencing_process", "sqlite", path, namespace, "written"]
    with (
        SqliteStore(path, timeout_s=0.1) as impatient,
        SqliteStore(path, timeout_s=100.0) as patient,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGSTOP)
        for _ in range(2):
            with (
                pytest.raises(sqlite3.OperationalError, match=f"process {process.pid} .*: resume or end it"),
                impatient.raising(claim(namespace, 0, 8, 9)),
            ):
                pass
        process.kill()
        with patient.raising(claim(namespace, 0, 8, 9)):
            pass


@pytest.mark.redis
def test_script_of_the_service_gets_its_keys_and_arguments_unchanged(redis_server: RedisServer, namespace: str):
    own, name = claim(namespace, 0, 8, 5), key(namespace, 1)
    with RedisStore(redis_server.url) as store:
        store.raise_fence(own)
        script = "return {#KEYS, #ARGV, KEYS[1], KEYS[2], ARGV[1], ARGV[2]}"
        assert store.script(own, name, script, ["a", "b"], ["x", "y"]) == [2, 2, b"a", b"b", b"x", b"y"]
        with pytest.raises(Exception, match=r"(?i)unknown (redis )?command"):
            store.command(own, name, "NONSENSE", "a")


@pytest.mark.parametrize("table", ["fence; DROP TABLE x", "", "a.b.c", "1st"])
def test_a_table_is_named_as_one(table: str):
    with pytest.raises(ValueError, match="not a valid table name"):
        Fences(table)


def test_a_driver_that_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for module in ("psycopg_pool", "redis", "redis.exceptions"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'loadmanager\[postgresql\]'"):
        PostgresStore("postgresql://nowhere")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'loadmanager\[redis\]'"):
        RedisStore("redis://nowhere")
