"""What a consumer does with records that came while their partition went away, or went and came back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from loadmanager.consumer.assignment import Change, Place
from loadmanager.consumer.group_consumer import GroupConsumer
from loadmanager.consumer.kafka_client import KafkaClient
from loadmanager.consumer.session import Session, now_ms
from loadmanager.consumers.coordinator.messages import Answer
from loadmanager.consumers.coordinator.records import Partition, Subscription
from loadmanager.errors import Invalid

A: Partition = ("orders", 0)
B: Partition = ("orders", 1)


class Record:
    """Of a partition."""

    def __init__(self, partition: Partition, offset: int) -> None:
        self.place = partition, offset

    def topic(self) -> str:
        return self.place[0][0]

    def partition(self) -> int:
        return self.place[0][1]

    def offset(self) -> int:
        return self.place[1]

    def error(self) -> None:
        return None


class Trouble:
    """An error of Kafka's client about a partition."""

    def __init__(self, partition: Partition, error: KafkaError, offset: int | None = None) -> None:
        self.place = partition, -1001
        self._error = error
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset

    def topic(self) -> str:
        return self.place[0][0]

    def partition(self) -> int:
        return self.place[0][1]

    def error(self) -> KafkaError:
        return self._error


class Kafka:
    """A client that has fetched these records; `meanwhile` happens while it is asked for them."""

    def __init__(self, *records: Record) -> None:
        self.records = list(records)
        self.assigned: list[list[TopicPartition]] = []
        self.unassigned: list[list[TopicPartition]] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.settings: dict[str, Any] = {}
        self.closed = False

    def opened(self, settings: dict[str, Any]) -> Kafka:
        self.settings = settings
        return self

    def close(self) -> None:
        self.closed = True

    def assignment(self) -> list[TopicPartition]:
        return [each for some in self.assigned for each in some]

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        places = [each.place for each in self.records]
        return [
            TopicPartition(
                each.topic, each.partition,
                max((offset + 1 for place, offset in places if place == (each.topic, each.partition)), default=-1001),
            )
            for each in partitions
        ]  # fmt: skip

    def poll(self, timeout_s: float) -> Record | None:
        del timeout_s
        self.meanwhile()
        return self.records[0] if self.records else None

    def consume(self, count: int, timeout_s: float) -> list[Record]:
        assert timeout_s == 0, "it waits for the first record only"
        return self.records[1 : count + 1]

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned.append(partitions)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self.unassigned.append(partitions)


def client(*consumers: Kafka) -> KafkaClient:
    """A client that opens these, one after the other."""
    left = list(consumers)
    return KafkaClient({}, "persistent://t/n/g", lambda settings: cast("Consumer", left.pop(0).opened(settings)))


def session(kafka: Kafka) -> Session:
    found = Session(
        "persistent://t/n/g", Subscription(("orders",)), [], None, client(kafka),
        cluster="", commit_interval_s=1.0, max_poll_interval_s=300.0, revoke_is_told=False,
    )  # fmt: skip
    follow(found, assigned=frozenset({A, B}))
    return found


def follow(of: Session, **change: Any) -> None:
    with of.news:
        of._follow(Change(**change))


def places(of: Session) -> list[tuple[Partition, int]]:
    return [cast("Record", each).place for each in of.fetched]


@pytest.mark.parametrize("name", ["commit_interval_s", "max_poll_interval_s"])
@pytest.mark.parametrize("value_s", [0.0, -1.0, float("nan")])
def test_times_are_above_0(name: str, value_s: float) -> None:
    times_s: dict[str, Any] = {name: value_s}
    with pytest.raises(Invalid, match=f"{name} is {value_s}: give seconds"):
        GroupConsumer("t/n/g", ["orders"], brokers=["http://127.0.0.1:9"], kafka={}, **times_s)


def test_records_wait_in_their_order_until_they_are_given_out() -> None:
    found = session(Kafka(Record(A, 7), Record(B, 3), Record(A, 8)))
    found.fetch(0.1)
    assert places(found) == [(A, 7), (B, 3), (A, 8)]


@pytest.mark.parametrize("how", ["revoked", "lost"])
def test_records_of_a_partition_that_goes_are_thrown_away(how: str) -> None:
    found = session(Kafka(Record(A, 7), Record(B, 3)))
    found.fetch(0.1)
    follow(found, **{how: frozenset({A})})
    assert places(found) == [(B, 3)]


def test_records_of_a_partition_that_goes_meanwhile_are_thrown_away() -> None:
    kafka = Kafka(Record(A, 7), Record(B, 3))
    found = session(kafka)
    kafka.meanwhile = lambda: follow(found, revoked=frozenset({A}))
    found.fetch(0.1)
    assert places(found) == [(B, 3)]
    assert len(kafka.assigned) == 1


def test_a_partition_that_went_and_came_back_meanwhile_is_fetched_anew() -> None:
    """Its record may be of the first time: given out now, a commit could pass over what comes before it."""
    kafka = Kafka(Record(A, 7), Record(B, 3))
    found = session(kafka)

    def goes_and_comes() -> None:
        follow(found, lost=frozenset({A}))
        follow(found, assigned=frozenset({A}))

    kafka.meanwhile = goes_and_comes
    found.fetch(0.1)
    assert places(found) == [(B, 3)]
    assert kafka.unassigned[-1] == [TopicPartition(*A)]
    assert kafka.assigned[-1] == [TopicPartition(*A, OFFSET_STORED)]
    assert len(kafka.assigned) == 3
    kafka.meanwhile = lambda: None
    found.fetch(0.1)
    assert places(found) == [(B, 3), (A, 7), (B, 3)], "what was known then is not doubted later"


@pytest.mark.parametrize("offset", [0, 7])
def test_stranded_client_gives_way_to_one_that_goes_on_at_the_same_places(offset: int) -> None:
    """Of A it has read one record, of B nothing yet."""
    first, second = Kafka(Record(A, offset)), Kafka()
    members = client(first, second)
    members.assign({A, B})
    assert [each.offset() for each in members.fetch(0.1)] == [offset]
    first.settings["stats_cb"]('{"brokers": {}}')
    members.fetch(0.1)
    assert not first.closed, "there was something to read"
    read, first.records = first.records, []
    first.position = Kafka(*read).position  # type: ignore[method-assign]
    members.fetch(0.1)
    assert first.closed
    [assigned] = second.assigned
    assert [(each.partition, each.offset) for each in assigned] == [(0, offset + 1), (1, OFFSET_STORED)]
    members.fetch(0.1)
    members.unassign({A})
    assert second.unassigned == [[TopicPartition(*A)]]
    assert not second.closed


def test_stranded_client_without_partitions_is_replaced_as_well() -> None:
    first, second = Kafka(), Kafka()
    members = client(first, second)
    first.settings["stats_cb"]('{"brokers": {}}')
    assert members.fetch(0.1) == []
    assert (first.closed, second.assigned) == (True, [])


# --- without a wait


def reading(*records: Record, lease_ms: int = 60_000) -> tuple[GroupConsumer, Session]:
    """A consumer that has fetched these, may read A and B for so long, and whose service knows of both."""
    consumer = GroupConsumer("t/n/g", ["orders"], brokers=["http://127.0.0.1:9"], kafka={})
    its = consumer._session
    beat = its.membership.beat(*now_ms())
    change = its.membership.answered(beat.sequence, Answer(7, 1, 1, lease_ms, {"orders": (0, 1)}))
    its.progress.begin(change.assigned)
    its.fetched.extend(cast("Any", records))
    return consumer, its


def test_a_record_at_hand_is_given_out_and_the_one_before_is_done() -> None:
    first, second = Record(A, 7), Record(A, 8)
    consumer, its = reading(first, second)
    assert [consumer.poll_fetched() for _ in range(3)] == [first, second, None]
    assert its.progress.to_commit() == {A: Place(8, 9)}, "the second one is still in progress"


def test_nothing_is_given_out_when_the_lease_is_over() -> None:
    consumer, its = reading(Record(A, 7), lease_ms=0)
    assert consumer.poll_fetched() is None
    assert places(its) == [(A, 7)], "the lease may be prolonged"


@pytest.mark.parametrize("stands_still", [0, 1], ids=["the steady clock", "the wall clock"])
def test_a_suspended_machine_notices_on_either_clock_that_its_lease_is_over(
    stands_still: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, its = reading(Record(A, 7))
    assert consumer.assignment == [A, B]
    later_ms = [each + 61_000 for each in now_ms()]
    later_ms[stands_still] -= 61_000
    for module in ("session", "group_consumer"):
        monkeypatch.setattr(f"loadmanager.consumer.{module}.now_ms", lambda: tuple(later_ms))
    assert not its.may_read()
    assert consumer.assignment == []
    assert its.held() == []
    assert consumer.poll_fetched() is None


@pytest.mark.parametrize("what", ["assign", "leaving", "failed"])
def test_what_the_service_is_to_be_told_comes_first(what: str) -> None:
    consumer, its = reading(Record(A, 7))
    match what:
        case "assign":
            its.events.append(("assign", [A]))
        case "leaving":
            its.progress.end([B])
        case _:
            its.failed = Invalid("no")
    assert consumer.poll_fetched() is None
    assert places(its) == [(A, 7)]


# --- callbacks


class Service:
    """A consumer of A and B whose callbacks are written down; `raises`: so many calls of `on_assign` fail."""

    def __init__(self, kafka: Kafka, raises: int = 0) -> None:
        self.told: list[tuple[str, list[Partition]]] = []
        self._raises = raises
        self.consumer = GroupConsumer(
            "t/n/g", ["orders"], brokers=["http://127.0.0.1:9"], kafka={},
            on_assign=partial(self._tell, "assign"),
            on_revoke=partial(self._tell, "revoke"),
            on_lost=partial(self._tell, "lost"),
        )  # fmt: skip
        self.session = self.consumer._session
        self.consumer._kafka = self.session._kafka = client(kafka)
        self.answer(0, 1)

    def answer(self, *numbers: int, lease_ms: int = 60_000) -> None:
        """What the coordinator says that it may read."""
        membership = self.session.membership
        beat = membership.beat(*now_ms())
        answer = Answer(7, membership.revision + 1, 1, lease_ms, {"orders": numbers})
        with self.session.news:
            self.session._follow(membership.answered(beat.sequence, answer))

    def _tell(self, what: str, partitions: list[Partition]) -> None:
        self.told.append((what, partitions))
        if what == "assign" and self._raises:
            self._raises -= 1
            raise RuntimeError("no room")

    def poll(self) -> tuple[Partition, int] | None:
        found = self.consumer.poll(0)
        return None if found is None else cast("Record", found).place


def test_on_assign_that_raised_is_called_again_before_any_record() -> None:
    service = Service(Kafka(Record(A, 7)), raises=2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no room"):
            service.poll()
    assert service.consumer.poll_fetched() is None
    assert service.poll() == (A, 7)
    assert service.told == [("assign", [A, B])] * 3


def test_a_record_that_comes_with_its_partition_is_not_done_if_on_assign_raises() -> None:
    """The partition came while the reader waited in Kafka's client."""
    kafka = Kafka()
    service = Service(kafka)
    service.answer(0)
    with service.session.news:
        service.session._give_up()
    service.poll()
    kafka.records = [Record(B, 3)]
    kafka.meanwhile, service._raises = partial(service.answer, 0, 1), 1
    assert service.poll() is None
    kafka.meanwhile = lambda: None
    with pytest.raises(RuntimeError):
        service.poll()
    assert service.session.progress.to_commit() == {}
    assert service.poll() == (B, 3)
    assert service.session.progress.to_commit() == {B: Place(3, 4)}


def test_what_the_service_was_never_told_of_is_given_up_without_a_word() -> None:
    service = Service(Kafka())
    service.answer(0)
    service.poll()
    assert service.told == [("assign", [A])]
    with service.session.news:
        service.session._give_up()
    assert service.session.membership.beat(*now_ms()).acked == 2, "B is given up"


def test_what_on_assign_refused_is_not_told_again_when_it_has_gone() -> None:
    service = Service(Kafka(), raises=1)
    with pytest.raises(RuntimeError):
        service.poll()
    service.answer(0)
    service.poll()
    assert service.told == [("assign", [A, B]), ("assign", [A]), ("revoke", [B])]
    with service.session.news:
        service.session._follow(service.session.membership.lose())
    service.poll()
    assert service.told[3:] == [("lost", [A, B])]


@pytest.mark.parametrize("error", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC])
def test_a_deleted_topic_stops_no_other(error: int, caplog: pytest.LogCaptureFixture) -> None:
    service = Service(Kafka(cast("Any", Trouble(B, KafkaError(error))), Record(A, 7)))
    assert service.poll() == (A, 7)
    assert "waits for Kafka" in caplog.text


@pytest.mark.parametrize(("at", "goes_on_at"), [(None, OFFSET_END), (7, OFFSET_BEGINNING)])
def test_latest_is_for_a_partition_without_an_offset_and_not_for_records_that_are_gone(
    at: int | None, goes_on_at: int
) -> None:
    kafka = Kafka(cast("Any", Trouble(B, KafkaError(KafkaError._AUTO_OFFSET_RESET), at)), Record(A, 7))
    service = Service(kafka)
    assert service.poll() == (A, 7)
    assert kafka.settings["auto.offset.reset"] == "error", "it does not tell the two apart"
    assert [(each.topic, each.partition) for each in kafka.unassigned[-1]] == [B]
    assert [(each.topic, each.partition, each.offset) for each in kafka.assigned[-1]] == [(*B, goes_on_at)]


@pytest.mark.parametrize("start", ["earliest", "error"])
def test_other_starts_are_left_to_kafkas_client(start: str) -> None:
    kafka = Kafka()
    found = KafkaClient({"auto.offset.reset": start}, "persistent://t/n/g", lambda its: cast("Any", kafka.opened(its)))
    assert kafka.settings["auto.offset.reset"] == start
    assert not found.restart(cast("Any", Trouble(B, KafkaError(KafkaError._AUTO_OFFSET_RESET), 7)))
    assert kafka.assigned == []


def test_a_topic_that_may_not_be_read_is_an_error() -> None:
    service = Service(Kafka(cast("Any", Trouble(B, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))))
    with pytest.raises(KafkaException):
        service.poll()


def test_whatever_ends_the_session_is_raised_by_poll() -> None:
    kafka = {"bootstrap.servers": "127.0.0.1:9", "log_level": 0}
    consumer = GroupConsumer("t/n/g", ["orders"], brokers=(brokers := ["http://127.0.0.1:9"]), kafka=kafka)
    consumer._session._brokers = ()
    with consumer:
        with consumer._session.news:
            assert consumer._session.news.wait_for(lambda: consumer._session.failed is not None, 20)
        consumer._session._brokers = brokers
        with pytest.raises(Invalid, match="at least one broker"):
            consumer.poll(0)


def test_a_record_of_a_partition_that_leaves_is_passed_over() -> None:
    consumer, its = reading(Record(A, 7), Record(B, 3))
    its.progress.take(A, 6)
    its.progress.end([A])
    found = consumer.poll_fetched()
    assert found is not None
    assert found.partition() == 1


def test_it_waits_for_nobody() -> None:
    """The session's thread may hold the lock while it talks to Kafka's client."""
    consumer, its = reading(Record(A, 7))
    with its.news, ThreadPoolExecutor(1) as other:
        assert other.submit(consumer.poll_fetched).result(10) is None
    assert places(its) == [(A, 7)]
