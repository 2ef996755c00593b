"""What an audit of an existing store reports.

An adapter reads the settings of the store that it was pointed at and reports one finding per setting: what it found and
what the operator should change. This module has the types only. An adapter's audit changes nothing in the store.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    """As the channel needs it."""
    WARNING = "warning"
    """The channel works, but loses availability, durability or speed that it could have."""
    ERROR = "error"
    """The channel cannot work, or may lose state, until this is changed."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that an audit looked at."""

    subject: str
    """`broker`, `topic bundle-state`, …"""
    severity: Severity
    found: str
    """What is there, as a sentence or `name=value`."""
    advice: str = ""
    """What to change; empty if nothing needs a change."""
