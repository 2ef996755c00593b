"""Serves the metrics of real brokers with a fault written into them: no name or label is made up.

A fault is a case's series. Each must be a sample that a real broker has just answered, so a metric with another name
or other labels fails the test. What grows in a minute of promtool's time grows in a second here.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

Sample = tuple[str, frozenset[tuple[str, str]]]
LABEL = re.compile(r'(\w+)="([^"]*)"')
SINCE_1970 = {"loadmanager_tls_certificate_expires_seconds"}
"""Promtool's clock begins in 1970, Prometheus' does not."""


def parsed(series: str) -> tuple[str, Sample]:
    """The instance that a series of a case belongs to, and the sample."""
    name, _, rest = series.partition("{")
    labels = dict(LABEL.findall(rest))
    instance = labels.pop("instance")
    del labels["job"]
    return instance, (name, frozenset(labels.items()))


def samples(text: str) -> dict[Sample, float]:
    """Everything in an answer of `/metrics`."""
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


class Faulty:
    """One broker's answer of `/metrics` with other values for some samples."""

    def __init__(self, text: str, fault: Mapping[Sample, str]) -> None:
        there = samples(text)
        assert fault.keys() <= there.keys(), f"no broker exposes {sorted(map(str, fault.keys() - there.keys()))}"
        self._kept = "".join(f"{_line(each, value)}\n" for each, value in there.items() if each not in fault)
        self._fault = fault
        self._began_s = time.monotonic()

    def answer(self) -> str:
        """The answer now."""
        passed_s = time.monotonic() - self._began_s
        return self._kept + "".join(f"{_line(each, _at(each, v, passed_s))}\n" for each, v in self._fault.items())


def _at(sample: Sample, values: str, passed_s: float) -> float:
    first = values.split()[0].partition("x")[0]
    begin, _, growth = first.partition("+")
    return float(begin) + float(growth or 0) * int(passed_s) + (time.time() if sample[0] in SINCE_1970 else 0)


def _line(sample: Sample, value: float) -> str:
    labels = ",".join(f'{name}="{text}"' for name, text in sample[1])
    return f"{sample[0]}{{{labels}}} {value}"


@asynccontextmanager
async def exporting(
    answers: Mapping[str, str], cases: Mapping[str, Sequence[Mapping[str, str]]]
) -> AsyncIterator[list[dict[str, object]]]:
    """Serve each case as a job of its own; yields the targets for Prometheus.

    `answers` are those of real brokers, by instance. A case with `up` at 0 answers 503.
    """
    found: dict[tuple[str, str], Faulty | None] = {}
    for case, series in cases.items():
        for instance, text in answers.items():
            fault = {parsed(s["series"])[1]: s["values"] for s in series if parsed(s["series"])[0] == instance}
            found[case, instance] = None if ("up", frozenset()) in fault else Faulty(text, fault)

    async def metrics(request: web.Request) -> web.Response:
        faulty = found[request.match_info["case"], request.match_info["instance"]]
        return web.Response(status=503) if faulty is None else web.Response(text=faulty.answer())

    application = web.Application()
    application.router.add_get("/{case}/{instance}", metrics)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = site.name.removeprefix("http://")
    try:
        yield [
            {
                "targets": [address],
                "labels": {"job": f"loadmanager-{case}", "instance": at, "__metrics_path__": f"/{case}/{at}"},
            }
            for case, at in found
        ]
    finally:
        await runner.cleanup()
