"""Removes secrets from a support bundle. Pure.

Errors quote what strangers sent, and `re` holds the interpreter's lock: every pattern takes linear time, as
tests/test_repetition.py checks.

It hides too much rather than too little:

* everything that is passed to the clients of Kafka and ZooKeeper;
* every value of `properties`, which may be anything;
* the user and the query in a URL;
* every value with a name that sounds like a secret;
* every value that the caller knows to be one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, cast

HIDDEN = "***"

CLOSED = frozenset({"kafka", "zookeeper", "properties"})
"""Mappings whose names are shown and whose values are not."""

_SECRET = (
    r"(?:passw|passphrase|pwd|secret|credential|api[._-]?key|access[._-]?key|private[._-]?key|key[._-]?pem"
    r"|auth[._-]?data|authorization|bearer|jaas|sasl\.|oauth)"
)
SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
"""Matches names that sound like a secret."""

_VALUE = r"""[\[({][^\n]*+|"(?:\\(?s:.)?|[^"\\])*+"?|'(?:\\(?s:.)?|[^'\\])*+'?|\S++"""
_BEHIND_A_NAME = re.compile(
    rf"""(?<![\w.-])(?=[\w.-]*?{_SECRET})([\w.-]++(?:["']?\s*+(?:[=:]|is\b)|(?<=[.-]is)(?=\s))\s*+)(?:{_VALUE})""",
    re.IGNORECASE,
)
"""Each name is looked through once, from its start: from each of its letters, a long one would take minutes."""
_CHUNK = re.compile(r"""[^\s"'<>]{4,}""")
"""What a URL may be part of."""
_SCHEME = re.compile(r"(?<![a-z0-9+.-])(?!(?:non-)?persistent:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
"""Topics are not URLs, though people name them after addresses."""
_BEFORE_A_HOST = re.compile(r"(?<!persistent)://")
_AT_SERVER = re.compile(r"""(?<![^\s"'<>/,@])([^\s"'<>/,@]+)@(?=[\w.\[-])""")
_USER = re.compile(r"(?:^|(?<=[:=]))[^:=]+:.")
_TOKEN = re.compile(
    r"(\bbearer\s+)[\w.~+/=-]{8,}|(?<![\w-])(?=[\w-]*?\beyJ[\w-]{5})[\w-]++\.[\w-]++\.[\w-]*+",
    re.IGNORECASE,
)
_PEM = re.compile(r"-----BEGIN [^-]+-----(?:[^-]++|-(?!----END ))*+(?:-----END [^-]+-----|(?s:.*))")

MIN_LENGTH = 4
"""Shorter secrets are not searched for in texts: that would hide half of every text."""

SHORT_CHARACTERS = 2_048
READ_CHARACTERS = 8_192


def redact(value: Any, known: Collection[str] = ()) -> Any:
    """A JSON value without its secrets; names stay. `known` are values that must not appear anywhere."""
    match value:
        case dict():
            return {name: _hide_named(name, v, known) for name, v in cast("dict[str, Any]", value).items()}
        case list():
            return [redact(v, known) for v in cast("list[Any]", value)]
        case str():
            return redact_text(value, known)
        case _:
            return value


def redact_text(text: str, known: Collection[str] = ()) -> str:
    """A text without its secrets."""
    for secret in sorted((k for k in known if len(k) >= MIN_LENGTH), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _PEM.sub(HIDDEN, text)
    text = _TOKEN.sub(rf"\1{HIDDEN}", text)
    text = _CHUNK.sub(_hide_in_url, text)
    text = _AT_SERVER.sub(_hide_user, text)
    return _BEHIND_A_NAME.sub(rf"\1{HIDDEN}", text)


def redact_and_shorten(text: str) -> str:
    """A text without its secrets, of about `SHORT_CHARACTERS` at most: errors quote what clients send.

    Secrets are hidden first, since a cut may part a secret from its name. The end of a text above `READ_CHARACTERS` is
    not read, as hiding takes time; of a shorter one the middle is left out, since errors end with what to do.
    """
    hidden = redact_text(text[:READ_CHARACTERS])
    unread = max(0, len(text) - READ_CHARACTERS)
    if not unread and len(hidden) <= SHORT_CHARACTERS:
        return hidden
    half = SHORT_CHARACTERS // 2
    end = "" if unread else hidden[-half:]
    return f"{hidden[:half]}… [{len(hidden) + unread - half - len(end):,} characters left out] {end}".rstrip()


def _hide_in_url(found: re.Match[str]) -> str:
    """The user and the query."""
    chunk = found[0]
    at = chunk.rfind("@")
    if at >= 0 and (scheme := _SCHEME.search(chunk, 0, at)):
        chunk = f"{chunk[: scheme.end()]}{HIDDEN}{chunk[at:]}"
    if (host := _BEFORE_A_HOST.search(chunk)) and 0 <= (query := chunk.find("?", host.end())) < len(chunk) - 1:
        chunk = f"{chunk[: query + 1]}{HIDDEN}"
    return chunk


def _hide_user(found: re.Match[str]) -> str:
    """`user:password` before the address of a server, which may be the value of a setting."""
    user = _USER.search(found[1])
    return f"{found[1][: user.start()]}{HIDDEN}@" if user else found[0]


def secrets_in(*mappings: Mapping[str, str]) -> frozenset[str]:
    """Every value of settings that are passed to a client, because we cannot know which are secret.

    Commonplace values (`SASL_SSL`, numbers, `true`) stay: they are not secrets, and would hide other things.
    """
    values = {value for mapping in mappings for value in mapping.values()}
    parts = {part for value in values for part in re.split(r"""[\s"',:;\[\](){}=]+""", value)}
    return frozenset(v for v in values | parts if len(v) >= MIN_LENGTH and not _COMMONPLACE.fullmatch(v))


_COMMONPLACE = re.compile(
    r"\d+|true|false|none|plain|digest|plaintext|ssl|sasl_ssl|sasl_plaintext|scram-sha-\d+|gssapi|oauthbearer|https?"
    r"|(?:client|server|broker|auth|scheme|username|user|password|required|org|apache|kafka|zookeeper)++",
    re.IGNORECASE,
)


def _hide_named(name: str, value: Any, known: Collection[str]) -> Any:
    if name in CLOSED and isinstance(value, dict):
        return dict.fromkeys(cast("dict[str, Any]", value), HIDDEN)
    if SECRET_NAME.search(name) and value is not None:
        return HIDDEN
    return redact(value, known)
