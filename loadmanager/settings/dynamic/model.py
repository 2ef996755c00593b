"""The cluster's value of a setting: the value of a document with the setting's name. Values only."""

from __future__ import annotations

import msgspec

Scalar = bool | int | float | str | None


class ClusterValue(msgspec.Struct, frozen=True):
    """The value in our unit. None is a value (no limit); deleting the document returns to each broker's own setting."""

    value: Scalar
