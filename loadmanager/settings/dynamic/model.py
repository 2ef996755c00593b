"""A setting as the cluster has it: the value of a document whose name is the setting's. Values only."""

from __future__ import annotations

import msgspec

Scalar = bool | int | float | str | None


class ClusterValue(msgspec.Struct, frozen=True):
    """In our unit. None is a value (no limit); a document that is deleted leaves each broker its own setting."""

    value: Scalar
