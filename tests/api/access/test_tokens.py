"""`access/tokens.py`: which tokens are good, and whom they name. Wrong ones in every way that attackers try."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import algorithms

from loadmanager.errors import Invalid
from loadmanager.settings import Settings
from loadmanager_api.access.sender import NoKeys, Unauthenticated
from loadmanager_api.access.tokens import FETCH_AGAIN_S, FETCH_EVERY_S, KEYS_AT_MOST, LEEWAY_S, Tokens, keys_in
from tests.api.access.issuing import AUDIENCE, Issuer, jwks

HOUR_S = 3_600
SECRET = b"0123456789abcdef0123456789abcdef"


def settings(**given: Any) -> Settings:
    return Settings(**{"superusers": "root", **given})


@pytest.fixture
def issuer() -> Issuer:
    return Issuer("k1")


@pytest.fixture
def keys(tmp_path: Path, issuer: Issuer) -> Path:
    path = tmp_path / "keys.json"
    path.write_bytes(jwks(issuer))
    return path


def tokens_of(keys: Path, now_s: Callable[[], float] = time.time, **given: Any) -> Tokens:
    return Tokens(settings(token_keys=str(keys), **given), now_s)


def why(tokens: Tokens, token: str) -> str:
    with pytest.raises(Unauthenticated) as refused:
        tokens.verify(token)
    return refused.value.why


def test_a_good_token_names_its_subject_until_it_expires(keys: Path, issuer: Issuer) -> None:
    expires_s = int(time.time()) + 60
    found = tokens_of(keys).verify(issuer.token("ann", exp=expires_s))
    assert (found.name, found.how, found.until_s) == ("ann", "token", expires_s + LEEWAY_S)


def test_another_claim_can_name_the_principal(keys: Path, issuer: Issuer) -> None:
    tokens = tokens_of(keys, token_subject_claim="client_id")
    assert tokens.verify(issuer.token("ann", client_id="carts")).name == "carts"
    assert why(tokens, issuer.token("ann")) == "subject"


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"exp": -HOUR_S}, "expired"),
        ({"exp": None}, "claims"),
        ({"exp": "tomorrow"}, "malformed"),
        ({"nbf": HOUR_S}, "not_yet"),
        ({"iat": HOUR_S}, "not_yet"),
        ({"aud": "billing"}, "audience"),
        ({"aud": None}, "claims"),
        ({"sub": None}, "subject"),
        ({"sub": ""}, "subject"),
        ({"sub": "a\nb"}, "subject"),
        ({"sub": "a" * 201}, "subject"),
    ],
    ids=str,
)
def test_wrong_claims_are_refused(keys: Path, issuer: Issuer, changed: dict[str, Any], wrong: str) -> None:
    now_s = int(time.time())
    claims: dict[str, Any] = {
        name: now_s + value if isinstance(value, int) else value for name, value in changed.items()
    }
    assert why(tokens_of(keys), issuer.token("ann", **claims)) == wrong


def test_one_audience_of_several_is_enough(keys: Path, issuer: Issuer) -> None:
    assert tokens_of(keys).verify(issuer.token("ann", aud=["billing", AUDIENCE])).name == "ann"


def test_clocks_may_differ_by_the_leeway(keys: Path, issuer: Issuer) -> None:
    now_s = int(time.time())
    assert tokens_of(keys).verify(issuer.token("ann", exp=now_s - 10)).name == "ann"
    assert why(tokens_of(keys), issuer.token("ann", exp=now_s - LEEWAY_S - 1)) == "expired"


def test_the_issuer_must_be_the_one_of_the_settings(keys: Path, issuer: Issuer) -> None:
    tokens = tokens_of(keys, token_issuer="https://id.example")
    assert tokens.verify(issuer.token("ann", iss="https://id.example")).name == "ann"
    assert why(tokens, issuer.token("ann", iss="https://evil.example")) == "issuer"
    assert why(tokens, issuer.token("ann")) in ("claims", "issuer")


def test_a_foreign_key_is_no_key(keys: Path) -> None:
    assert why(tokens_of(keys), Issuer("k1").token()) == "signature"
    assert why(tokens_of(keys), Issuer("k2").token()) == "key"
    assert why(tokens_of(keys), Issuer().token()) == "signature"


def test_none_is_no_algorithm(keys: Path, issuer: Issuer) -> None:
    tokens = tokens_of(keys)
    for name in ("none", "None", "NONE"):
        head = base64.urlsafe_b64encode(msgspec.json.encode({"alg": name, "typ": "JWT"})).rstrip(b"=")
        body = base64.urlsafe_b64encode(msgspec.json.encode(issuer.claims("root"))).rstrip(b"=")
        for signature in (b"", b"AA"):
            assert why(tokens, b".".join((head, body, signature)).decode()) == "algorithm"


def test_a_public_key_is_no_shared_secret(tmp_path: Path) -> None:
    """The attack: sign with HS256, the published PEM being the secret."""
    issuer = Issuer()
    path = tmp_path / "keys.pem"
    path.write_bytes(issuer.pem)
    secret = jwt.PyJWK({"kty": "oct", "k": base64.urlsafe_b64encode(issuer.pem).decode()}, algorithm="HS256").key
    parts = [
        base64.urlsafe_b64encode(msgspec.json.encode(each)).rstrip(b"=")
        for each in ({"alg": "HS256", "typ": "JWT"}, issuer.claims("root"))
    ]
    signature = algorithms.HMACAlgorithm(algorithms.HMACAlgorithm.SHA256).sign(b".".join(parts), secret)
    forged = b".".join((*parts, base64.urlsafe_b64encode(signature).rstrip(b"="))).decode()
    assert why(tokens_of(path), forged) == "algorithm"
    assert tokens_of(path).verify(issuer.token()).name == "ann"


def test_keys_inside_a_token_are_ignored(keys: Path) -> None:
    evil = Issuer("k1")
    for headers in ({"jwk": evil.jwk}, {"jku": "https://evil.example/keys"}, {"x5u": "https://evil.example/cert"}):
        assert why(tokens_of(keys), evil.token("root", headers)) == "signature"


@pytest.mark.parametrize("token", ["", "a", "a.b", "a.b.c", "é.é.é", "." * 10, "e30.e30.e30", "a" * 20_000])
def test_what_is_no_token_is_refused(keys: Path, token: str) -> None:
    assert why(tokens_of(keys), token) in ("malformed", "algorithm")


def test_a_changed_token_is_refused(keys: Path, issuer: Issuer) -> None:
    head, _, signature = issuer.token("ann").split(".")
    body = base64.urlsafe_b64encode(msgspec.json.encode(issuer.claims("root"))).rstrip(b"=").decode()
    assert why(tokens_of(keys), f"{head}.{body}.{signature}") == "signature"


def encoded(part: Any) -> str:
    data = part if isinstance(part, bytes) else msgspec.json.encode(part)
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(issuer: Issuer, claims: Any, **header: Any) -> str:
    """A token with a good signature, whatever is in it."""
    text = f"{encoded({'alg': 'ES256', 'typ': 'JWT', 'kid': issuer.kid, **header})}.{encoded(claims)}"
    signature = algorithms.ECAlgorithm(algorithms.ECAlgorithm.SHA256).sign(text.encode(), issuer.key)
    return f"{text}.{encoded(signature)}"


@pytest.mark.parametrize(
    ("kid", "wrong"),
    [
        ("../../../../dev/null", "key"),
        ("/etc/passwd", "key"),
        ("https://evil.example/keys", "key"),
        ("k1' UNION SELECT 'k2", "key"),
        ("k1\0", "key"),
        ("K1", "key"),
        ("\U0001f511", "key"),
        ("k" * 15_000, "key"),
        (1, "malformed"),
        (["k1"], "malformed"),
        ({"k1": 1}, "malformed"),
        (None, "malformed"),
    ],
    ids=lambda kid: str(kid)[:20],
)
def test_the_name_of_a_key_is_compared_and_nothing_else(keys: Path, kid: Any, wrong: str) -> None:
    assert why(tokens_of(keys), signed(Issuer("k1"), Issuer().claims("root"), kid=kid)) == wrong


@pytest.mark.parametrize("signature", [b"", bytes(64), bytes(63), b"\xff" * 64, b"0" * 71], ids=len)
def test_a_signature_of_no_key_is_refused(keys: Path, issuer: Issuer, signature: bytes) -> None:
    token = issuer.token("root").rpartition(".")[0]
    assert why(tokens_of(keys), f"{token}.{encoded(signature)}") == "signature"


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"exp": 10**18}, None),
        ({"exp": -1}, "expired"),
        ({"exp": True}, "expired"),
        ({"exp": []}, "malformed"),
        ({"nbf": []}, "malformed"),
        ({"aud": [1]}, "audience"),
        ({"aud": {AUDIENCE: 1}}, "audience"),
        ({"aud": []}, "claims"),
        ({"sub": ["root"]}, "malformed"),
        ({"sub": 1}, "malformed"),
    ],
    ids=str,
)
def test_claims_of_another_type_are_refused(
    keys: Path, issuer: Issuer, changed: dict[str, Any], wrong: str | None
) -> None:
    tokens, token = tokens_of(keys), signed(issuer, issuer.claims("ann", **changed))
    if wrong is None:
        assert tokens.verify(token).name == "ann"
    else:
        assert why(tokens, token) == wrong


@pytest.mark.parametrize(
    "claims",
    [
        b"[]",
        b"null",
        b'{"sub": "ann", "aud": "loadmanager", "exp": 1e999}',
        b'{"sub": "ann", "aud": "loadmanager", "exp": NaN}',
        b'{"sub": "ann", "aud": "loadmanager", "exp": 1' + b"0" * 400 + b"}",
        b'{"sub": "ann", "aud": "loadmanager", "exp": 1' + b"0" * 5_000 + b"}",
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    ],
    ids=lambda claims: str(claims)[:60],
)
def test_what_is_no_readable_claims_is_refused(keys: Path, issuer: Issuer, claims: bytes) -> None:
    assert why(tokens_of(keys), signed(issuer, claims)) == "malformed"


@pytest.mark.parametrize("header", [b"[" * 15_000, b'{"alg":' * 3_000, b"[]", b"null", b'"ES256"'])
def test_what_is_no_readable_header_is_refused(keys: Path, header: bytes) -> None:
    assert why(tokens_of(keys), f"{encoded(header)}.{encoded({})}.AAAA") == "malformed"


def test_what_a_token_calls_critical_is_not_overlooked(keys: Path, issuer: Issuer) -> None:
    claims = issuer.claims("root")
    assert why(tokens_of(keys), signed(issuer, claims, crit=["scope"], scope="read")) == "malformed"
    assert why(tokens_of(keys), signed(issuer, claims, crit=["b64"], b64=False)) == "malformed"


# --- keys


def test_shared_secrets_and_rsa_keys_verify_too(tmp_path: Path) -> None:
    private = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    public = algorithms.RSAAlgorithm.to_jwk(private.public_key(), as_dict=True)
    shared = {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET).rstrip(b"=").decode(), "kid": "s"}
    path = tmp_path / "keys.json"
    path.write_bytes(msgspec.json.encode({"keys": [{**public, "kid": "r"}, shared]}))
    tokens, claims = tokens_of(path), Issuer().claims("ann")
    assert tokens.verify(jwt.encode(claims, SECRET, "HS256", {"kid": "s"})).name == "ann"
    for algorithm in ("RS256", "PS384"):
        assert tokens.verify(jwt.encode(claims, private, algorithm, {"kid": "r"})).name == "ann"
    assert why(tokens, jwt.encode(claims, SECRET, "HS256", {"kid": "r"})) == "algorithm"


def test_the_algorithm_of_a_jwk_is_its_only_one(tmp_path: Path) -> None:
    private = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    public = algorithms.RSAAlgorithm.to_jwk(private.public_key(), as_dict=True)
    path = tmp_path / "keys.json"
    path.write_bytes(msgspec.json.encode({"keys": [{**public, "alg": "RS256"}]}))
    claims = Issuer().claims("ann")
    assert tokens_of(path).verify(jwt.encode(claims, private, "RS256")).name == "ann"
    assert why(tokens_of(path), jwt.encode(claims, private, "RS512")) == "algorithm"


def test_a_key_for_encryption_verifies_nothing(tmp_path: Path) -> None:
    encrypting, signing = Issuer("k1"), Issuer("k2")
    path = tmp_path / "keys.json"
    path.write_bytes(msgspec.json.encode({"keys": [{**encrypting.jwk, "use": "enc"}, signing.jwk]}))
    assert why(tokens_of(path), encrypting.token()) == "key"
    assert tokens_of(path).verify(signing.token()).name == "ann"


def weak_rsa() -> bytes:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=1_024)
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no key"),
        (b"hello", "no key"),
        (b"{}", "not a JWKS"),
        (b"{", "not a JWKS"),
        (b'{"keys": []}', "no key"),
        (b'{"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}', "at least 32"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "not a public key"),
        pytest.param(Issuer().private_pem, "private key", id="private"),
        pytest.param(weak_rsa(), "at least 2048", id="weak"),
        (b'{"keys": [1]}', "not a JWKS"),
        pytest.param(jwks(*[Issuer()] * (KEYS_AT_MOST + 1)), "101 keys, at most 100", id="many"),
        (b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "d": "AA"}]}', "private key"),
    ],
)
def test_unusable_keys_are_refused_with_a_reason(content: bytes, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        keys_in(content)


def test_a_missing_file_of_keys_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"token_keys=.*absent.*No such file"):
        tokens_of(tmp_path / "absent")


def test_keys_are_rotated_by_replacing_the_file(keys: Path, issuer: Issuer) -> None:
    tokens, newer = tokens_of(keys), Issuer("k2")
    assert not tokens.look()
    keys.write_bytes(jwks(issuer, newer))
    assert tokens.look()
    assert tokens.verify(newer.token("ben")).name == "ben"
    assert tokens.verify(issuer.token("ann")).name == "ann"
    keys.write_bytes(jwks(newer))
    assert tokens.look()
    assert why(tokens, issuer.token("ann")) == "key"


def test_a_broken_new_file_leaves_the_earlier_keys(
    keys: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tokens_of(keys)
    keys.write_bytes(b"half a fi")
    assert not tokens.look()
    assert "earlier keys" in caplog.text
    assert tokens.verify(issuer.token("ann")).name == "ann"


# --- keys from a URL


class Site:
    """Serves documents; counts requests."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []

    def __call__(self, url: str) -> bytes:
        self.asked.append(url)
        if url not in self.pages:
            raise OSError("404")
        return self.pages[url]


KEYS_URL = "https://id.example/keys"


def test_keys_from_a_url_are_fetched_again_in_time(issuer: Issuer) -> None:
    site, now = Site(), [1_000.0]
    tokens = Tokens(settings(token_keys=KEYS_URL), lambda: now[0], site)
    with pytest.raises(NoKeys):
        tokens.verify(issuer.token())
    assert not tokens.ready
    assert not tokens.look(), "the site does not answer"
    site.pages[KEYS_URL] = jwks(issuer)
    now[0] += FETCH_AGAIN_S - 1
    assert not tokens.look(), "not yet again"
    now[0] += 1
    assert tokens.look()
    assert tokens.verify(issuer.token("ann")).name == "ann"
    now[0] += FETCH_EVERY_S - 1
    tokens.look()
    assert len(site.asked) == 2
    now[0] += 1
    tokens.look()
    assert len(site.asked) == 3


def test_an_unknown_key_brings_the_next_fetch_forward_but_not_a_flood(issuer: Issuer) -> None:
    site, now, newer = Site(), [1_000.0], Issuer("k2")
    site.pages[KEYS_URL] = jwks(issuer)
    tokens = Tokens(settings(token_keys=KEYS_URL), lambda: now[0], site)
    tokens.look()
    site.pages[KEYS_URL] = jwks(issuer, newer)
    for _ in range(100):
        assert why(tokens, newer.token()) == "key"
        tokens.look()
    assert len(site.asked) == 1
    now[0] += FETCH_AGAIN_S
    assert tokens.look()
    assert tokens.verify(newer.token("ben")).name == "ben"


def test_discovery_leads_to_the_keys_of_the_issuer(issuer: Issuer) -> None:
    site = Site()
    name = "https://id.example/realm"
    page = f"{name}/.well-known/openid-configuration"
    tokens = Tokens(settings(token_issuer=name), lambda: 1_000.0, site)
    site.pages |= {page: msgspec.json.encode({"issuer": name, "jwks_uri": KEYS_URL}), KEYS_URL: jwks(issuer)}
    assert tokens.look()
    assert site.asked == [page, KEYS_URL]
    assert tokens.verify(issuer.token("ann", iss=name)).name == "ann"


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://other.example", "jwks_uri": KEYS_URL},
        {"issuer": "https://id.example", "jwks_uri": "http://id.example/keys"},
        {"issuer": "https://id.example", "jwks_uri": "file:///etc/passwd"},
        {"issuer": "https://id.example"},
        [],
    ],
    ids=str,
)
def test_a_discovery_document_that_leads_elsewhere_is_not_followed(document: Any, issuer: Issuer) -> None:
    site = Site()
    site.pages |= {
        "https://id.example/.well-known/openid-configuration": msgspec.json.encode(document),
        KEYS_URL: jwks(issuer),
        "http://id.example/keys": jwks(issuer),
    }
    tokens = Tokens(settings(token_issuer="https://id.example"), lambda: 1_000.0, site)
    assert not tokens.look()
    with pytest.raises(NoKeys):
        tokens.verify(issuer.token("ann", iss="https://id.example"))


# --- settings


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tls_certificate": "a"}, "tls_key belong together"),
        ({"tls_client_ca": "a"}, "tls_client_ca needs tls_certificate"),
        ({"tls_certificate": "a", "tls_key": "b", "tls_client_required": True}, "tls_client_required needs"),
        ({"token_keys": "http://id.example/keys"}, "must be https"),
        ({"token_issuer": "http://id.example"}, "must be https"),
        ({"token_issuer": "me"}, "token_keys is missing"),
        ({"token_keys": "a", "superusers": " , "}, "superusers is empty"),
        ({"token_keys": "a", "token_audience": ""}, "token_audience"),
        ({}, "superusers needs"),
        ({"token_keys": "a", "superusers": "*"}, "superusers"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_together_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        settings(**given)
