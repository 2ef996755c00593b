"""Every example of the chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helm.rendering import EXAMPLES, documents, rendered


@pytest.fixture(params=EXAMPLES, ids=lambda path: path.stem)
def example(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def manifests(example: Path) -> list[dict[str, Any]]:
    return documents(rendered("-f", str(example)))
