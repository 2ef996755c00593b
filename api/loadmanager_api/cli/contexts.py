"""The file of contexts: names for clusters, each with its brokers and the credentials that they are shown.

A secret is named by its file or environment variable; the file of contexts never has one itself.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import click
import msgspec

from loadmanager.errors import Invalid
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.command_group import with_nearest
from loadmanager_api.cli.remote import ADMIN_URL, CONTEXT, DEFAULT_URL, TIMEOUT_S, Pinned, Remote, Typed

PREFIX = "LOADMANAGER_"
TOKENS = ("LOADMANAGER_TOKEN", "LOADMANAGER_TOKEN_FILE")
CERTIFICATES = ("LOADMANAGER_CLIENT_CERTIFICATE", "LOADMANAGER_CLIENT_KEY")
FILES = ("ca", "client_certificate", "client_key", "token_file")
SECRET_FILES = ("token_file", "client_key")
_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):\d+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NAME = re.compile(r"[A-Za-z0-9][\w.@-]{0,63}")


class Context(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One cluster, and who asks it. Files are paths; `token_env` is the name of a variable that has the token.

    `cluster` is a name, or a whole value of `Loadmanager-Cluster`: that of the first answer, unless it was given.
    """

    admin_url: str
    cluster: str = ""
    ca: str = ""
    client_certificate: str = ""
    client_key: str = ""
    token_file: str = ""
    token_env: str = ""
    insecure: bool = False
    timeout_s: float | None = None

    def variables(self) -> dict[str, str]:
        """The credentials as `Credentials.of_environment` reads them. Raises Failed."""
        found = {
            f"{PREFIX}{name.upper()}": str(Path(value).expanduser()) for name in FILES if (value := getattr(self, name))
        }
        if self.token_env:
            if not os.environ.get(self.token_env):
                raise Failed(f"the context takes its token from ${self.token_env}, which is not set: export it")
            found["LOADMANAGER_TOKEN"] = os.environ[self.token_env]
        return found | ({"LOADMANAGER_INSECURE": "true"} if self.insecure else {})


class Contexts(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What the file holds."""

    current: str | None = None
    contexts: dict[str, Context] = {}

    def get(self, name: str) -> Context:
        """The context of this name. Raises Failed with the nearest names."""
        if name not in self.contexts:
            raise Failed(with_nearest(f"no context {name!r} in {file()}; `context set` makes one", name, self.contexts))
        return self.contexts[name]


def file() -> Path:
    """Where contexts are kept: `$XDG_CONFIG_HOME/loadmanager/contexts.yaml`, else below `~/.config`."""
    root = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".config") / "loadmanager" / "contexts.yaml"


def load() -> Contexts:
    """The contexts; none if there is no file. Raises Failed if the file is unusable or others may write it."""
    path = file()
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Failed(f"others may write {path}, and could send your token elsewhere: chmod 600 {path}")
    return parse(text, str(path))


def parse(text: str, where: str) -> Contexts:
    """The contexts in this YAML. Raises Failed, without repeating a value: one that is refused may be a secret."""
    import yaml

    try:
        found = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise Failed(f"{where} is not valid YAML{f', line {mark.line + 1}' if mark else ''}") from None
    for name, values in _mappings(found).items():
        if secret := next((key for key in _mappings(values) if key in ("token", "password")), None):
            raise Failed(f"{where}: context {name!r} has a {secret}: {HOW}")
    try:
        contexts = msgspec.convert(found, Contexts)
    except msgspec.ValidationError as error:
        raise Failed(f"{where}: {error}") from None
    for name, context in contexts.contexts.items():
        check(name, context)
    return contexts


HOW = "name the secret's file with token_file, or its environment variable with token_env"


def _mappings(found: Any) -> Mapping[str, Any]:
    inner = cast("dict[str, Any]", found).get("contexts", found) if isinstance(found, dict) else {}
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}


def save(contexts: Contexts) -> None:
    """Replace the file, atomically; only its owner may read it. Raises Failed."""
    import yaml

    path = file()
    text = yaml.safe_dump(msgspec.to_builtins(contexts), sort_keys=False)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}.new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
        new.replace(path)
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}") from None


def pin(name: str, before: str, cluster: str) -> None:
    """Remember the cluster of a context, unless it has changed since it was read. Raises Failed.

    A name that was given stays a name: it stands for every cluster that is called so.
    """
    contexts = load()
    context = contexts.contexts.get(name)
    if context is not None and context.cluster == before and (not before or "/" in before):
        contexts.contexts = {**contexts.contexts, name: msgspec.structs.replace(context, cluster=cluster)}
        save(contexts)


def check(name: str, context: Context) -> None:
    """Raises Failed if a value is unusable or a secret."""
    if not _NAME.fullmatch(name):
        raise Failed(f"{name!r} is not a valid name for a context: use letters, digits, '.', '_', '@' and '-'")
    for url in urls_of(context.admin_url):
        if "@" in urlsplit(url).netloc:
            raise Failed(f"context {name!r}: a URL must not contain a user or a password: {HOW}")
    if context.cluster:
        from loadmanager.client.cluster import Pin  # takes longer to import than some commands take to run

        try:
            Pin(context.cluster)
        except Invalid as error:
            raise Failed(f"context {name!r}: {error}") from None
    if context.token_env and not _VARIABLE.fullmatch(context.token_env):
        raise Failed(f"context {name!r}: token_env is the name of an environment variable, not a token")
    if context.token_env and context.token_file:
        raise Failed(f"context {name!r}: give token_file or token_env, not both")
    if context.client_key and not context.client_certificate:
        raise Failed(f"context {name!r}: client_key needs client_certificate")
    for secret in SECRET_FILES:
        path = Path(getattr(context, secret)).expanduser()
        if getattr(context, secret) and path.is_file():  # if it is not there yet, its use says so
            from loadmanager.client.credentials import check_private  # imports the client

            try:
                check_private(path, path.stat().st_mode)
            except Invalid as error:
                raise Failed(f"{secret} {error}") from None


def known_names() -> list[str]:
    """Names of contexts, for completion; none if the file is unusable."""
    try:
        return sorted(load().contexts)
    except Failed:
        return []


def urls_of(text: str) -> list[str]:
    """The URLs of a list with commas; `host:port` means HTTP."""
    parts = [part.strip().rstrip("/") for part in text.split(",") if part.strip()]
    return [f"http://{part}" if _HOST_PORT.fullmatch(part) else part for part in parts]


def chosen(typed: Typed, contexts: Contexts) -> str | None:
    """The context that counts: of the option, the environment, or the file."""
    return typed.context or os.environ.get(CONTEXT) or contexts.current


def resolved(typed: Typed) -> Remote:
    """What the line says, over the environment, over the context. Raises Failed, UsageError.

    A context that the line names counts as a whole: the environment's address and credentials are not used beside it.
    """
    contexts = load()
    name = chosen(typed, contexts)
    context = None if name is None else contexts.get(name)
    environment = {} if typed.context else dict(os.environ)
    url = typed.admin_url or environment.get(ADMIN_URL) or (context.admin_url if context else DEFAULT_URL)
    timeout_s = typed.request_timeout_s or (context and context.timeout_s) or TIMEOUT_S
    urls = urls_of(url)
    if not urls:
        raise click.UsageError("--admin-url names no broker; write --admin-url host:port")
    variables = None if context is None else _merged(context, environment)
    pinned = Pinned()
    if context is not None and url == context.admin_url:
        pinned = Pinned(context.cluster, name or "", partial(pin, name or ""))
    elif context is not None and typed.context:  # another address of its cluster: what that says is not remembered
        pinned = Pinned(context.cluster)
    return Remote(
        admin_urls=urls, output=typed.output or "table", timeout_s=timeout_s, variables=variables, pinned=pinned
    )


def _merged(context: Context, environment: Mapping[str, str]) -> Mapping[str, str]:
    """The context's credentials, but for those that the environment has: a token, or a certificate with its key."""
    own = {name: value for name, value in environment.items() if name.startswith(PREFIX) and value}
    hidden = {name for group in (TOKENS, CERTIFICATES) if any(name in own for name in group) for name in group}
    ours = context
    if any(name in own for name in TOKENS):  # then the variable of the context need not be set
        ours = msgspec.structs.replace(context, token_env="", token_file="")
    return {name: value for name, value in ours.variables().items() if name not in hidden} | own
