"""Verifies bearer tokens: JWTs signed with a key of the setting `token_keys`. PyJWT does the cryptography.

The algorithm follows from the key, never from the token, so that a public key cannot be used as a shared secret and
`none` is not accepted. Keys from a file are read again when it changes; keys from a URL every few minutes, and soon
after a token that names an unknown key.
"""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from loadmanager.errors import Invalid
from loadmanager.settings import Settings
from loadmanager_api.access.files import MAX_FILE_BYTES, Watched, read_file
from loadmanager_api.access.sender import Clock, NoKeys, Principal, Unauthenticated

_log = logging.getLogger("loadmanager")

LEEWAY_S = 30.0
"""By which an issuer's clock may differ: it covers clocks that lost NTP."""
KEYS_AT_MOST = 100
SECRET_BYTES = 32
RSA_BITS = 2_048
FETCH_TIMEOUT_S = 5.0
FETCH_EVERY_S = 300.0
FETCH_AGAIN_S = 30.0
"""After a failure, or a token with an unknown key, the keys are fetched again; not sooner than after this time."""

DISCOVERY = "/.well-known/openid-configuration"
NAME_CHARACTERS = 200

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": ("ES256",), "secp384r1": ("ES384",), "secp521r1": ("ES512",)}
_SHARED = ("HS256", "HS384", "HS512")
_BEGIN, _END, _DASHES = b"-----BEGIN ", b"-----END ", b"-----"


class _Jwks(msgspec.Struct):
    keys: list[dict[str, Any]]


Fetch = Callable[[str], bytes]


class Key(msgspec.Struct, frozen=True):
    """A key that verifies tokens, with its only algorithms. `kid` is its name in tokens, if it has one."""

    kid: str
    algorithms: tuple[str, ...]
    key: Any


class Tokens:
    """The verifier. `look` belongs to a thread of its own where keys come from a URL: it waits for that."""

    def __init__(self, settings: Settings, now_s: Clock, fetch: Fetch | None = None) -> None:
        """Raises Invalid if a file of keys cannot be used; a URL is asked later, and then again and again."""
        self._settings = settings
        self._now_s = now_s
        self._fetch = fetch or fetched
        self._watched: Watched | None = None
        self._due_s = 0.0
        self._fetched_s = -FETCH_EVERY_S
        self._keys: Sequence[Key] = ()
        if not self.remote:
            self._watched = Watched((settings.token_keys,))
            self._keys = self._of_file()

    @property
    def remote(self) -> bool:
        """Whether the keys come from a URL."""
        return not self._settings.token_keys or self._settings.token_keys.startswith("https://")

    @property
    def ready(self) -> bool:
        """Returns True once keys are loaded: those of an issuer that was away at the start come later."""
        return bool(self._keys)

    def look(self) -> bool:
        """Read the keys again if it is time. Returns True if they changed. On a failure the earlier keys stay."""
        try:
            if self._watched is not None:
                if not self._watched.changed():
                    return False
                keys = self._of_file()
            else:
                if self._now_s() < self._due_s:
                    return False
                self._fetched_s, self._due_s = self._now_s(), self._now_s() + FETCH_AGAIN_S
                keys = self._of_url()
                self._due_s = self._fetched_s + FETCH_EVERY_S
        except Invalid as error:
            _log.error("tokens are verified with the earlier keys: %s", error)
            return False
        same = [each.kid for each in keys] == [each.kid for each in self._keys] and keys == self._keys
        self._keys = keys
        return not same

    def verify(self, token: str) -> Principal:
        """Who the token names. Raises Unauthenticated, with the reason; NoKeys."""
        try:
            return self._verified(token)
        except _UNREADABLE as error:
            raise _refusal(error) from None

    def _verified(self, token: str) -> Principal:
        settings = self._settings
        found: list[Key] = self._candidates(token)
        failure: Exception = jwt.InvalidSignatureError()
        for key in found:
            try:
                claims = jwt.decode(
                    token,
                    key.key,
                    algorithms=list(key.algorithms),
                    audience=settings.token_audience,
                    issuer=settings.token_issuer or None,
                    leeway=LEEWAY_S,
                    options={"require": ["exp", "aud"]},
                )
            except jwt.InvalidSignatureError as error:
                failure = error
            else:
                return self._named(claims)
        raise failure

    def _candidates(self, token: str) -> list[Key]:
        header = jwt.get_unverified_header(token)
        algorithm, kid = str(header.get("alg")), str(header.get("kid", ""))
        named = [key for key in self._keys if not kid or not key.kid or key.kid == kid]
        if kid and not any(key.kid == kid for key in named):
            self._due_s = min(self._due_s, self._fetched_s + FETCH_AGAIN_S)  # perhaps a new one
        usable = [key for key in named if algorithm in key.algorithms]
        if usable:
            return usable
        if not self._keys:
            raise NoKeys
        if named:
            raise Unauthenticated("algorithm", f"no key here is for tokens with the algorithm {algorithm[:20]!r}")
        raise Unauthenticated("key", f"the token is signed with the key {kid[:100]!r}, which is not known here")

    def _named(self, claims: dict[str, Any]) -> Principal:
        claim = self._settings.token_subject_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name or len(name) > NAME_CHARACTERS or not name.isprintable():
            raise Unauthenticated("subject", f"the token has no usable claim {claim!r}, which names its owner")
        return Principal(name, "token", float(claims["exp"]) + LEEWAY_S)

    # --- keys

    def _of_file(self) -> Sequence[Key]:
        path = self._settings.token_keys
        try:
            return keys_in(read_file(path, "token_keys"))
        except Invalid as error:
            named = str(error).startswith("token_keys=")
            raise Invalid(str(error) if named else f"token_keys={path}: {error}") from None

    def _of_url(self) -> Sequence[Key]:
        url = self._settings.token_keys
        try:
            if not url:
                issuer = self._settings.token_issuer
                found = json.loads(self._fetch(issuer.rstrip("/") + DISCOVERY))
                if found["issuer"] != issuer:
                    raise Invalid(f"{issuer}{DISCOVERY} is about another issuer, {found['issuer']}")
                url = str(found["jwks_uri"])
                if not url.startswith("https://"):
                    raise Invalid(f"{issuer} names {url} for its keys, which is not an https URL")
            return keys_in(self._fetch(url))
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, Invalid):
                raise
            raise Invalid(f"{url or self._settings.token_issuer} gives no keys: {error}") from None


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Refuses redirects to plain HTTP, where an attacker on the path could insert keys."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.startswith("https://"):
            raise ValueError(f"it redirects to {newurl}, which is not an https URL")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetched(url: str) -> bytes:
    """The content at an https URL. Raises OSError, ValueError."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.build_opener(_HttpsOnly).open(request, timeout=FETCH_TIMEOUT_S) as answer:
        content: bytes = answer.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"more than {MAX_FILE_BYTES:,} bytes")
    return content


def keys_in(content: bytes) -> Sequence[Key]:
    """The keys of a JWKS, or of PEM blocks. Raises Invalid."""
    keys = _of_jwks(content) if content.lstrip().startswith(b"{") else _of_pem(content)
    if not keys:
        raise Invalid("it has no key that can verify tokens")
    if len(keys) > KEYS_AT_MOST:
        raise Invalid(f"{len(keys)} keys, at most {KEYS_AT_MOST}")
    return keys


def _of_jwks(content: bytes) -> Sequence[Key]:
    try:
        listed = msgspec.json.decode(content, type=_Jwks).keys
    except msgspec.MsgspecError:
        raise Invalid('this is not a JWKS; write {"keys": […]}') from None
    keys: list[Key] = []
    for each in listed:
        if each.get("use", "sig") != "sig":
            continue
        if "d" in each:
            raise Invalid("a private key is among the keys; a broker needs, and should have, public keys only")
        try:
            found = jwt.PyJWK(each, algorithm=each.get("alg") or _default_algorithm(each))
        except jwt.PyJWTError:
            continue  # of a kind that is not for signatures here
        algorithms = _algorithms(found.key)
        if each.get("alg"):
            algorithms = tuple(name for name in algorithms if name == each["alg"])
        if algorithms:
            keys.append(Key(str(each.get("kid", "")), algorithms, found.key))
    return keys


def _default_algorithm(jwk: dict[str, Any]) -> str | None:
    return "HS256" if jwk.get("kty") == "oct" else None


def _of_pem(content: bytes) -> Sequence[Key]:
    keys: list[Key] = []
    for part in content.split(_BEGIN)[1:]:
        kind, _, rest = part.partition(_DASHES)
        body, end, _ = rest.partition(_END + kind + _DASHES)
        if not end:
            continue
        if b"PRIVATE" in kind:
            raise Invalid("a private key is among the keys; a broker needs, and should have, public keys only")
        try:
            key = load_pem_public_key(_BEGIN + kind + _DASHES + body + end)
        except (ValueError, TypeError) as error:
            raise Invalid(f"a PEM block is not a public key: {error}") from None
        algorithms = _algorithms(key)
        if algorithms:
            keys.append(Key("", algorithms, key))
    return keys


def _algorithms(key: Any) -> tuple[str, ...]:
    """The algorithms for which a key may be used. Raises Invalid for keys that are too weak."""
    match key:
        case RSAPublicKey():
            if key.key_size < RSA_BITS:
                raise Invalid(f"an RSA key has {key.key_size} bits, at least {RSA_BITS} are needed")
            return _RSA
        case EllipticCurvePublicKey():
            return _CURVES.get(key.curve.name, ())
        case Ed25519PublicKey() | Ed448PublicKey():
            return ("EdDSA",)
        case bytes():
            if len(key) < SECRET_BYTES:
                raise Invalid(f"a shared secret has {len(key)} bytes, at least {SECRET_BYTES} are needed")
            return _SHARED
        case _:
            return ()


_UNREADABLE = (jwt.PyJWTError, OverflowError, RecursionError)
"""The last two come from a time out of range, and from a header or claims that nest too deeply."""

_WHY: Sequence[tuple[type[Exception], str, str]] = (
    (jwt.ExpiredSignatureError, "expired", "the token has expired: get a new one"),
    (jwt.ImmatureSignatureError, "not_yet", "the token is not valid yet: is the clock right, here and at the issuer?"),
    (jwt.InvalidAudienceError, "audience", "the token is for another service: its `aud` is not this broker's"),
    (jwt.InvalidIssuerError, "issuer", "the token is from another issuer than this broker's"),
    (jwt.InvalidSignatureError, "signature", "the token's signature fits no key of this broker"),
    (jwt.InvalidAlgorithmError, "algorithm", "the token's algorithm is not that of its key"),
)


def _refusal(error: Exception) -> Unauthenticated:
    if isinstance(error, jwt.MissingRequiredClaimError):
        return Unauthenticated("claims", f"the token has no claim {error.claim!r}")
    for kind, why, message in _WHY:
        if isinstance(error, kind):
            return Unauthenticated(why, message)
    return Unauthenticated("malformed", "the token cannot be read")
