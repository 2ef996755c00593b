"""Exports the traces of a real process for as long as it runs, if its settings say where to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from loadmanager.broker.node import Node
from loadmanager.broker.telemetry.export import Export, otlp
from loadmanager.model.registration import VERSION


@asynccontextmanager
async def traced(node: Node) -> AsyncGenerator[None]:
    """Export the spans of this node while the context is open, if its settings name a collector."""
    settings = node.settings
    if not settings.otlp_endpoint:
        yield
        return
    service = {"service.name": "loadmanager", "service.namespace": settings.cluster}
    service |= {"service.instance.id": settings.advertised, "service.version": VERSION}
    export = node.seen.tracing = Export(otlp(settings.otlp_endpoint, service, node.world.clock_s))
    try:
        yield
    finally:
        await asyncio.to_thread(export.close)
