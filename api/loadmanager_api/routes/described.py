"""`/openapi.json`: all routes, bodies and answers."""

from __future__ import annotations

from typing import Any, cast

from fastapi import FastAPI, Request

from loadmanager_api.routing import ControlRouter, on_http_loop

router = ControlRouter()


@router.get("/openapi.json", include_in_schema=False)
@on_http_loop
async def openapi(request: Request) -> dict[str, Any]:
    """Describe the interface as an OpenAPI document."""
    return cast("FastAPI", request.app).openapi()
