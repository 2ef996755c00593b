"""How a broker tells what it does: the form of its log, and where its traces go."""

from __future__ import annotations

from typing import Literal

from pydantic_settings import BaseSettings

from loadmanager.settings.describing import fixed


class Observing(BaseSettings):
    """Logs and traces."""

    log_format: Literal["console", "json"] = fixed(
        "console", "of the log on standard error", "for people; json has one object a line, for collectors of logs"
    )
    otlp_endpoint: str = fixed(
        "",
        "URL of a collector that takes traces by OTLP over HTTP, such as http://127.0.0.1:4318; empty: no traces",
        "needs the extra `otel`; credentials: OTEL_EXPORTER_OTLP_HEADERS",
        pattern=r"^(https?://\S+)?$",
    )
