"""A transfer on two brokers is one trace, with spans of both; a collector that is away costs nothing but spans."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loadmanager.broker.observations import Span, round_span
from loadmanager.broker.trace_export import QUEUED_AT_MOST, Export
from loadmanager.leader.plans.table import By, PlanAction
from loadmanager.model.host import BundleLoad
from loadmanager.testing.cluster import embedded_cluster
from loadmanager_api.cli.broker import formatter
from tests.loadmanager.embedded import Host


class Collector:
    """Takes OTLP over HTTP. `spans` are (broker, span)."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                    by = {a.key: a.value.string_value for a in each.resource.attributes}["service.instance.id"]
                    spans.extend((by, span) for scope in each.scope_spans for span in scope.spans)
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


service = logging.getLogger("service")


class Quiet(Host):
    """A service that waits for no requests, and logs."""

    async def release(self, bundle: Any, to: object) -> bytes | None:
        service.info("released")
        del self.held[bundle]
        return None


class Busy(Quiet):
    """A service whose bundles are all busy."""

    async def load(self) -> dict[Any, BundleLoad]:
        return {bundle: BundleLoad(in_rate_msg_s=200.0) for bundle in self.held}


async def test_a_transfer_is_one_trace_with_spans_of_both_brokers(collector: Collector, tmp_path: Path) -> None:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(formatter("json"))
    service.addHandler(handler)
    service.setLevel(logging.INFO)
    settings: dict[str, Any] = {"otlp_endpoint": collector.url, "directory": tmp_path}
    async with embedded_cluster(Quiet, brokers=2, bundles=2, **settings) as cluster:
        bundle = cluster.bundles()[0]
        old = cluster.owner(bundle)
        (new,) = set(cluster.brokers) - {old}
        assert old is not None
        await cluster.transfer(bundle, new)
        name = f"transfer {bundle}"
        await cluster.until(lambda: any(span.name == name for _, span in collector.spans))
        ((by, move),) = [(by, span) for by, span in collector.spans if span.name == name]
        wanted = {(new.name, "prepare"), (old.name, "release"), (new.name, "acquire")}
        wanted |= {(new.name, state) for state in ("transferring", "releasing", "assigning")}

        def children() -> dict[tuple[str, str], Any]:
            return {(b, s.name): s for b, s in collector.spans if s.parent_span_id == move.span_id}

        await cluster.until(lambda: children().keys() == wanted)
        assert by == new.name, "who wrote the last record tells of the move"
        assert {span.trace_id for span in children().values()} == {move.trace_id}
        line = json.loads(log.getvalue())
        assert (line["bundle"], line["trace"]) == (str(bundle), move.trace_id.hex())
        states = [children()[new.name, state] for state in ("transferring", "releasing", "assigning")]
        assert [each.start_time_unix_nano for each in states[1:]] == [each.end_time_unix_nano for each in states[:-1]]
        assert (states[0].start_time_unix_nano, states[-1].end_time_unix_nano) == (
            move.start_time_unix_nano, move.end_time_unix_nano,
        )  # fmt: skip
        about = {a.key: a.value for a in move.attributes}
        assert about["loadmanager.gap_seconds"].double_value > 0
        assert (about["loadmanager.from"].string_value, about["loadmanager.to"].string_value) == (old.name, new.name)


@pytest.mark.parametrize("review", [False, True])
async def test_a_round_is_the_root_of_all_that_it_leads_to(collector: Collector, tmp_path: Path, review: bool) -> None:
    settings: dict[str, Any] = {
        "otlp_endpoint": collector.url,
        "directory": tmp_path,
        "capacity": {"rate_msg_s": 1_000.0},
        "balancing": True,
        "balancing_interval_s": 0.5,
        "balancing_review": review,
        "balancing_budget": 1.0,
        "bundle_rest_s": 0.0,
        "split": False,
        "load_window_s": 1.0,
    }
    async with embedded_cluster(Busy, brokers=2, bundles=4, **settings) as cluster:
        first, other = cluster.brokers
        for bundle in cluster.bundles():
            if cluster.owner(bundle) is not other:
                await cluster.transfer(bundle, other)
        if review:
            await cluster.until(lambda: bool(first.node.plans.open()))
            plan = first.node.plans.open()[0]
            for action in (PlanAction.APPROVE, PlanAction.RUN):
                await first.ask(lambda node, do=action: node.plans.act(plan.id, do, By.OPERATOR, "ann"))
        begins = "plan " if review else "round "

        def trace() -> dict[int, tuple[str, Any]]:
            """The spans of the first trace that has a move of a round, or of a plan."""
            roots = {s.span_id: s for _, s in collector.spans if s.name.startswith(begins)}
            found = next((s for _, s in collector.spans if " test/" in s.name and s.parent_span_id in roots), None)
            return (
                {}
                if found is None
                else {s.span_id: (by, s) for by, s in collector.spans if s.trace_id == found.trace_id}
            )

        await cluster.until(lambda: {"prepare", "release", "acquire"} <= {s.name for _, s in trace().values()})
        spans = {span.name: (by, span) for by, span in trace().values()}

        def parents(name: str) -> list[str]:
            found: list[str] = []
            while (above := trace().get(spans[name][1].parent_span_id)) is not None:
                name = above[1].name
                found.append(name)
            return found

        expected = [r"transfer test/.*", *([r"plan \w+"] if review else []), r"round \d+\.\d+"]
        for hook in ("prepare", "release", "acquire"):
            assert re.fullmatch("\n".join(expected), "\n".join(parents(hook)))
        assert spans["release"][0] == other.name
        assert {spans["prepare"][0], spans["acquire"][0]} == {first.name}


def test_spans_without_room_are_counted_and_nobody_waits() -> None:
    going = threading.Event()
    sent: list[int] = []

    def send(spans: Any) -> bool:
        going.wait(30)
        sent.append(len(spans))
        return len(sent) > 1

    export = Export(send)
    span: Span = round_span("log", "1.1", 0.0, 1.0, {})
    offered = 2 * QUEUED_AT_MOST
    for _ in range(offered):
        export.offer(span)
    assert export.dropped > 0
    going.set()
    export.close()
    assert export.failed == sent[0], "the collector did not take the first batch"
    assert export.exported + export.failed + export.dropped == offered
