"""Turns ZooKeeper access settings (credentials, ACLs, TLS) into arguments of kazoo's client. Opens no connection.

auth_data     `digest:USER:PASSWORD`, or a list of these or of [scheme, credential]
sasl_options  of pure-sasl: {"mechanism": "DIGEST-MD5", "username": …, "password": …} or {"mechanism": "GSSAPI", …}
acl           ACL of the nodes that we create: `creator` (only clients with the same identity; default with one),
              `creator-read` (others may read), `SCHEME:ID:PERMISSIONS[,…]` as in zkCli.sh, or `open` (every client may
              do everything; default without an identity, and refused in production: `refuse_open_nodes`)
use_ssl       true; with `ca`, `certfile`, `keyfile`, `keyfile_password`. `check_hostname` is on unless it, or
              `verify_certs`, is false

All brokers of a cluster need an identity that the ACL admits. Other arguments of kazoo's client are passed on.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import ssl
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from kazoo.client import KazooClient
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Id, Permissions

from statechannel.errors import CoordinationError

PROTECTED = frozenset({"hosts", "timeout", "client_id", "handler", "read_only", "connection_retry", "command_retry"})
SWITCHES = ("use_ssl", "verify_certs", "check_hostname", "randomize_hosts")
FILES = ("ca", "certfile", "keyfile")
PERMISSIONS = {
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "a": Permissions.ADMIN,
}
CHANGING = Permissions.WRITE | Permissions.CREATE | Permissions.DELETE | Permissions.ADMIN
SECURE = (
    "give all brokers an identity in the zookeeper settings (auth_data, sasl_options or certfile), and no acl=open "
    "(docs/security.md)"
)
NAMED_ACLS = {
    "open": OPEN_ACL_UNSAFE,
    "creator": CREATOR_ALL_ACL,
    "creator-read": [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE],
}


def client_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `KazooClient`. Raises CoordinationError for settings that are refused or make no sense."""
    _check_names(settings)
    arguments = {name: value for name, value in settings.items() if name not in ("acl", "auth_data")}
    _check_tls(arguments)
    if arguments.get("use_ssl"):
        arguments.setdefault("check_hostname", arguments.get("verify_certs", True))
        try:
            tls_context(arguments)
        except OSError as error:
            raise CoordinationError(
                f"ca, certfile or keyfile of the zookeeper settings cannot be used: {error}; correct the files"
            ) from error
    if "auth_data" in settings:
        arguments["auth_data"] = _credentials(settings["auth_data"])
    if "sasl_options" in arguments:
        arguments["sasl_options"] = _sasl_options(arguments["sasl_options"])
    identified = any(name in arguments for name in ("auth_data", "sasl_options", "certfile"))
    acl = settings.get("acl", "creator" if identified else "open")
    if str(acl).startswith("creator") and not identified:
        raise CoordinationError(
            f"acl={acl} needs an identity to which the nodes belong: add `auth_data`, "
            "`sasl_options` or `certfile` to the zookeeper settings, or set acl=open"
        )
    arguments["default_acl"] = acl_of(acl)
    return arguments


def open_to_all(acl: Iterable[ACL]) -> bool:
    """Whether any client may change a node of this ACL, or create or delete nodes in it."""
    return any(entry.id.scheme == "world" and entry.perms & CHANGING for entry in acl)


def refuse_open_nodes(settings: Mapping[str, Any]) -> None:
    """Raise CoordinationError if any client could change what these settings create."""
    if open_to_all(client_arguments(settings)["default_acl"]):
        raise CoordinationError(
            f"everybody who reaches ZooKeeper could change the nodes of this cluster: {SECURE}. To go on as it is, say "
            "--development, or --insecure (LOADMANAGER_INSECURE=true)"
        )


def tls_context(arguments: Mapping[str, Any]) -> ssl.SSLContext | None:
    """The TLS context of `client_arguments`, as kazoo would build it; None without TLS."""
    if not arguments.get("use_ssl"):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    context.check_hostname = bool(arguments.get("check_hostname"))
    context.verify_mode = ssl.CERT_REQUIRED if arguments.get("verify_certs", True) else ssl.CERT_NONE
    if arguments.get("ca"):
        context.load_verify_locations(arguments["ca"])
    if arguments.get("certfile"):
        password = arguments.get("keyfile_password")
        context.load_cert_chain(arguments["certfile"], arguments["keyfile"], password)
    return context


def acl_of(setting: object) -> list[ACL]:
    """The ACL that the setting `acl` stands for. Raises CoordinationError."""
    if isinstance(setting, str) and setting in NAMED_ACLS:
        return list(NAMED_ACLS[setting])
    entries = setting.split(",") if isinstance(setting, str) else setting
    if not isinstance(entries, Sequence) or not entries:
        raise CoordinationError(_acl_advice(setting))
    return [_acl_entry(entry) for entry in cast("Sequence[object]", entries)]


def _acl_entry(entry: object) -> ACL:
    scheme, _, rest = str(entry).strip().partition(":")
    identity, mark, letters = rest.rpartition(":")
    if not scheme or not mark or not letters or not set(letters) <= PERMISSIONS.keys():
        raise CoordinationError(_acl_advice(entry))
    return ACL(sum(PERMISSIONS[letter] for letter in set(letters)), Id(scheme, identity))


def _acl_advice(found: object) -> str:
    return (
        f"acl={found!r} in the zookeeper settings is not an ACL: write {', '.join(NAMED_ACLS)}, or entries like "
        "sasl:loadmanager:cdrwa (scheme, id, permissions of c, d, r, w, a), separated by commas or as a JSON list"
    )


def _check_names(settings: Mapping[str, Any]) -> None:
    refused = sorted(PROTECTED.intersection(settings))
    if refused:
        raise CoordinationError(
            f"ZooKeeper client settings must not contain {', '.join(refused)}: remove them "
            "(addresses and time-outs have settings of their own, the rest is part of the protocol)"
        )
    known = inspect.signature(KazooClient.__init__).parameters.keys() - PROTECTED - {"self", "kwargs"} | {"acl"}
    if unknown := sorted(settings.keys() - known):
        raise CoordinationError(
            f"the zookeeper settings have no {', '.join(unknown)}: correct the name; known are "
            f"{', '.join(sorted(known - {'logger', 'default_acl'}))}"
        )


def _check_tls(arguments: Mapping[str, Any]) -> None:
    for name in SWITCHES:
        if not isinstance(arguments.get(name, True), bool):
            raise CoordinationError(f"{name}={arguments[name]!r} in the zookeeper settings: write true or false")
    for name in FILES:
        path = arguments.get(name)
        if path is not None and not Path(str(path)).is_file():
            raise CoordinationError(f"{name}={path} in the zookeeper settings: there is no such file; correct the path")
    if not isinstance(arguments.get("keyfile_password", ""), str):
        raise CoordinationError("keyfile_password in the zookeeper settings was read as a number: put it in quotes")
    given = [name for name in (*FILES, "keyfile_password") if arguments.get(name) is not None]
    if given and not arguments.get("use_ssl"):
        raise CoordinationError(f"{given[0]} in the zookeeper settings has no effect without use_ssl=true: add that")
    if ("certfile" in given) != ("keyfile" in given):
        raise CoordinationError("certfile and keyfile in the zookeeper settings belong together: give both, or neither")
    if arguments.get("check_hostname") and arguments.get("verify_certs") is False:
        raise CoordinationError("check_hostname=true needs verify_certs=true in the zookeeper settings")


def _credentials(setting: object) -> list[tuple[str, str]]:
    """Pairs of scheme and credential. The error message never repeats the setting, since it is a secret."""
    several = isinstance(setting, list | tuple | set | frozenset)
    entries = list(cast("Sequence[object]", setting)) if several else [setting]
    if len(entries) == 2 and isinstance(entries[0], str) and ":" not in entries[0]:
        entries = [entries]  # a single pair, without an outer list
    pairs: list[tuple[str, str]] = []
    for entry in entries:
        if isinstance(entry, list | tuple):
            parts = [str(part) for part in cast("Sequence[object]", entry)]
        else:
            parts = [part for part in str(entry).partition(":") if part != ":"]
        if len(parts) != 2 or not all(parts) or (parts[0] == "digest" and ":" not in parts[1]):
            raise CoordinationError(
                'auth_data in the zookeeper settings: write digest:USER:PASSWORD, or a JSON list of ["digest", '
                '"USER:PASSWORD"]'
            )
        pairs.append((parts[0], parts[1]))
    return pairs


def _sasl_options(setting: object) -> dict[str, Any]:
    """A copy of the checked setting, because kazoo adds to it."""
    if not isinstance(setting, Mapping) or "mechanism" not in setting:
        example = json.dumps({"mechanism": "DIGEST-MD5", "username": "USER", "password": "PASSWORD"})
        raise CoordinationError(f"sasl_options in the zookeeper settings: write a JSON object such as {example}")
    if importlib.util.find_spec("puresasl") is None:
        raise CoordinationError("sasl_options needs the package pure-sasl: install kazoo[sasl]")
    return dict(cast("Mapping[str, Any]", setting))
