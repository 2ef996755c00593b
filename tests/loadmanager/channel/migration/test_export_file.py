"""An export as a file: read whole or not at all, written whole or not at all."""

from __future__ import annotations

import os
import stat
from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.channel.migration.export import decode, encode, export_of, write
from loadmanager.errors import Conflict, Invalid
from statechannel.law.record import Token
from tests.disks import every_write_fails
from tests.loadmanager.channel.migration.channels import GENESIS, Book, begun, book_of, exported, two_namespaces


def resealed(body: bytes) -> bytes:
    return body + blake2b(body, digest_size=16).hexdigest().encode() + b"\n"


def body_of(data: bytes) -> bytes:
    return data[:-33]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 150), st.integers(1, 4))
def test_what_was_written_is_what_is_read(seed: int, steps: int, partitions: int):
    export = exported(book_of(seed, steps, partitions))
    data = encode(export)
    found = decode(data)
    assert [state.digest() for state in found.states] == [state.digest() for state in export.states]
    assert [state.next_offset for state in found.states] == [state.next_offset for state in export.states]
    assert (found.cluster_identity, found.taken_ms, found.address) == (
        export.cluster_identity,
        export.taken_ms,
        export.address,
    )
    assert encode(found) == data


def test_its_first_line_can_be_read_by_people_and_programs():
    magic, version, header = encode(exported(two_namespaces())).split(b"\n")[0].split(b" ", 2)
    assert (magic, version) == (b"LMEXPORT", b"01")
    assert msgspec.json.decode(header)["cluster"] == "shop"


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_flipped_bit_is_damage(data: st.DataObject):
    whole = encode(exported(two_namespaces()))
    at, bit = data.draw(st.integers(9, len(whole) - 1)), data.draw(st.integers(0, 7))
    spoilt = bytearray(whole)
    spoilt[at] ^= 1 << bit
    with pytest.raises(Invalid, match="damaged or truncated"):
        decode(bytes(spoilt))


def test_any_missing_end_is_damage_and_any_other_file_is_none():
    whole = encode(exported(two_namespaces()))
    for length in range(len(whole)):
        with pytest.raises(Invalid, match="damaged or truncated" if length >= 9 else "not an export"):
            decode(whole[:length])
    with pytest.raises(Invalid, match="not an export"):
        decode(b"SQLite format 3\0" + whole)


def test_a_later_format_is_told_from_damage():
    body = body_of(encode(exported(two_namespaces())))
    with pytest.raises(Invalid, match="format 04, this release reads up to 03"):
        decode(resealed(body.replace(b"LMEXPORT 01", b"LMEXPORT 04", 1)))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda body: body.replace(b'"cluster":"shop"', b'"cluster":"shed"', 1), "names another log"),
        (lambda body: body.replace(b'"cluster"', b'"clutter"', 1), "cannot be read"),
        (lambda body: body + b"\0\0\0\1x", "holds more"),
        (lambda body: body + b"\0\0\0\2x", "cut off"),
        (lambda body: body[: body.index(b"\n") + 1], "lacks"),
        (lambda body: body[: body.index(b"\n")], "lacks"),
        (lambda body: body.replace(b"LS01", b"LS01"[::-1], 1), "cannot be read"),
    ],
)
def test_what_is_sealed_and_makes_no_sense_is_refused_all_the_same(change, found: str):
    body = body_of(encode(exported(two_namespaces())))
    with pytest.raises(Invalid, match=found):
        decode(resealed(change(body)))


# --- writing


def test_only_its_owner_may_read_it_and_nothing_is_left_beside_it(tmp_path: Path):
    before = os.umask(0)
    try:
        write(tmp_path / "x", b"one")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["x"]


def test_a_file_that_is_there_is_kept_unless_it_shall_be_replaced(tmp_path: Path):
    write(tmp_path / "x", b"one")
    with pytest.raises(FileExistsError):
        write(tmp_path / "x", b"two")
    assert (tmp_path / "x").read_bytes() == b"one"
    write(tmp_path / "x", b"two", replace=True)
    assert (tmp_path / "x").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["x"]


def test_a_disk_that_refuses_leaves_the_earlier_file(tmp_path: Path):
    write(tmp_path / "x", b"one")
    with every_write_fails(), pytest.raises(OSError, match="File too large"):
        write(tmp_path / "x", b"two", replace=True)
    assert (tmp_path / "x").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["x"]


# --- what can be exported


def test_an_export_knows_tokens_owners_and_numbers():
    export = exported(two_namespaces())
    assert (export.bundles, export.owners()) == (11, {"a:1": 4, "b:1": 4})
    assert export.incarnations() == {"a:1": 4, "admin:1": 1, "b:1": 2}
    assert {namespace.name for namespace in export.namespaces()} == {"shop/orders", "game/rooms"}
    assert all(Token(GENESIS.generation, 0, entry.token) for entry in export.entries())


def test_a_log_that_belongs_to_nobody_or_is_not_whole_is_not_exported():
    with pytest.raises(Conflict, match="belongs to no cluster"):
        export_of(Book(cluster_identity=None).table, {}, "sqlite:x.db", 5)
    with pytest.raises(Conflict, match="run that import again"):
        export_of(begun(2).table, {}, "sqlite:x.db", 5)
