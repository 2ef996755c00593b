"""The schema of the chart's values has the brokers' settings as they are."""

from __future__ import annotations

import json

from helm.write_schema import FILE, schema


def test_schema_of_the_values_is_current():
    assert json.loads(FILE.read_text()) == schema(), "write it anew: python helm/write_schema.py"
