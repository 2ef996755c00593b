"""What can be wrong with a decision record that was read. It is passed over: nothing is decided from one."""

from __future__ import annotations


class BadDecision(Exception):
    """The bytes are no decision record, or a damaged one."""


class NewerDecision(BadDecision):
    """An intact record of a release that is newer than this one."""
