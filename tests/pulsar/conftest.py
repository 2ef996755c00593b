"""The fixture of `tests/api`: brokers in this process."""

from tests.api.conftest import cluster

__all__ = ["cluster"]
