"""How advice looks in its topic: JSON, with the digest that is its id. Pure.

What cannot be read is refused with the reason: foreign bytes, a newer format, a digest that does not fit, too large.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from loadmanager.errors import Invalid
from loadmanager.leader.advice.model import FORMAT, Advice, Progress, Review, Value

MAX_BYTES = 65_536
"""Of one value; 100 moves with long names are a third of it."""
ID_BYTES = 8

_read = msgspec.json.Decoder(Advice | Review | Progress).decode
_ordered = msgspec.json.Encoder(order="sorted").encode


def key_of(value: Value) -> str:
    """Where a value stands in the topic."""
    return f"{_KINDS[type(value)]}/{value.id}"


def sealed(advice: Advice) -> Advice:
    """The advice with its id: the same content has the same one, in whichever process."""
    return msgspec.structs.replace(advice, id=_digest(advice))


def encode(value: Value) -> bytes:
    """For the topic. Raises Invalid if it is too large."""
    data = msgspec.json.encode(value)
    if len(data) > MAX_BYTES:
        raise Invalid(f"this advice has {len(data):,} bytes, at most {MAX_BYTES:,} are allowed: advise less at once")
    return data


def decode(data: bytes) -> Value:
    """What stands in the topic. Raises Invalid."""
    if len(data) > MAX_BYTES:
        raise Invalid(f"a value of {len(data):,} bytes: at most {MAX_BYTES:,} are read")
    try:
        value = _read(data)
    except msgspec.MsgspecError as error:
        raise Invalid(f"this is no advice that this release can read: {error}") from None
    if isinstance(value, Advice):
        check_seal(value)
    return value


def check_seal(advice: Advice) -> None:
    """Raises Invalid if the format is newer, or the id is not that of the content."""
    if advice.format > FORMAT:
        raise Invalid(f"advice of format {advice.format}: this release reads {FORMAT}")
    if advice.id != (expected := _digest(advice)):
        raise Invalid(f"the id of advice is the digest of what it says, here {expected}, not {advice.id!r}")


def _digest(advice: Advice) -> str:
    unnamed = msgspec.structs.replace(advice, id="")
    return blake2b(_ordered(unnamed), digest_size=ID_BYTES).hexdigest()


_KINDS = {Advice: "advice", Review: "review", Progress: "progress"}
