"""What is taken out of a support bundle, wherever it stands, and what is left as it was."""

from __future__ import annotations

import json
import time

import pytest

from loadmanager.diagnostics.redaction import (
    HIDDEN,
    READ_CHARACTERS,
    SHORT_CHARACTERS,
    redact,
    redact_and_shorten,
    redact_text,
    secrets_in,
)

SECRET = "hunter2-Geheim"


@pytest.mark.parametrize(
    "text",
    [
        f"zookeeper://admin:{SECRET}@z1:2181,z2:2181/root",
        f"zookeeper://z1:2181,admin:{SECRET}@z2:2181",
        f"kafka://a:{SECRET}@k1:9092,b:{SECRET}@k2:9092",
        f"http://user:pa/ss@{SECRET}@host/path",
        f"'admin:{SECRET}@k1:9092' is not a server",
        f"cannot reach https://hooks/x?token={SECRET}&y={SECRET} (refused)",
        f"sasl.password={SECRET}",
        f"sasl.password=a,b;c{SECRET}",
        f'sasl.password="a\\"{SECRET}"',
        f"sasl.password = '{SECRET} with blanks'",
        f'{{"sasl.password": "{SECRET}"}}',
        f"ssl.key.password: {SECRET}, and more",
        f"SASL_PASSWORD={SECRET}",
        f"the password is {SECRET}",
        f"client_secret={SECRET}",
        f"auth_data=[('digest', 'me:{SECRET}')]".replace("', '", "','"),
        f"sasl.jaas.config=org.apache.Login(password={SECRET});",
        f"ssl.key.pem=-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\nMII{SECRET}",
        f"Authorization: {SECRET}",
    ],
)
def test_a_secret_in_a_text_is_hidden(text: str):
    assert SECRET not in redact_text(text)
    assert HIDDEN in redact_text(text)
    assert SECRET not in json.dumps(redact({"note": [text]}))


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8080/v1/settings",
        "started as 127.0.0.1:7001#3",
        "zookeeper://z1:2181,z2:2181/root",
        "persistent://t/n/topic",
        "persistent://t/n/alice@example.com?x=1 is not served here",
        "non-persistent://t/n/alice@example.com",
        "t/n/0x00000000_0x40000000 is assigned at a:1#1, token 1:0:17",
        'loadmanager_channel_records_total{outcome="refused",reason="stale"} 3.0',
        "the key 0x40000000 is outside of the bundle",
    ],
)
def test_what_is_no_secret_stays(text: str):
    assert redact_text(text) == text


def test_names_stay_and_values_that_may_be_secret_go():
    settings = {
        "cluster": "here",
        "kafka": {"sasl.username": "me", "security.protocol": "SASL_SSL"},
        "zookeeper": {"auth_data": SECRET},
        "properties": {"motto": SECRET},
        "nested": [{"ssl_key_password": SECRET, "client_secret": {"a": SECRET}, "token": "1:0:17"}],
        "partitions": 5,
    }
    hidden = redact(settings)
    assert SECRET not in json.dumps(hidden)
    assert hidden["kafka"] == {"sasl.username": HIDDEN, "security.protocol": HIDDEN}
    assert hidden["properties"] == {"motto": HIDDEN}
    assert hidden["cluster"] == "here"
    assert hidden["partitions"] == 5
    assert hidden["nested"][0]["token"] == "1:0:17", "a fencing token is no secret"


def test_what_the_asker_knows_to_be_secret_is_hidden_wherever_it_stands():
    known = secrets_in(
        {"sasl.password": SECRET, "security.protocol": "SASL_SSL", "socket.timeout.ms": "6000"},
        {"auth_data": '[["digest", "me:Wort-des-Tages"]]'},
    )
    assert redact_text(f"it said {SECRET}!", known) == f"it said {HIDDEN}!"
    assert "Wort-des-Tages" not in redact_text("it said Wort-des-Tages", known)
    assert redact_text("digest over SASL_SSL within 6000 ms", known) == "digest over SASL_SSL within 6000 ms"


def test_a_name_within_other_words_sounds_like_a_secret():
    assert redact({"my password": SECRET, "a/client_secret": SECRET}) == {
        "my password": HIDDEN,
        "a/client_secret": HIDDEN,
    }


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_quoted_secret_that_does_not_end_is_hidden_to_the_end(quote: str):
    assert redact_text(f"sasl.password={quote}one {SECRET} \\") == f"sasl.password={HIDDEN}"


def test_four_times_the_text_takes_four_times_the_work():
    """Errors quote what strangers sent. A search of quadratic time would take 16 times the work."""
    for part in (
        "a:",
        "x://",
        "eyJaaaaa-",
        "is.",
        "pwd",
        "secret='",
        "bearer ",
        "-----BEGIN ",
        "a=b",
        "a@b?",
        "pwd=a ",
    ):
        ratios = (_work(part, 16_000) / _work(part, 4_000) for _ in range(5))
        assert any(ratio < 10 for ratio in ratios), part


def _work(part: str, characters: int) -> float:
    text = part * (characters // len(part))
    before_s = time.thread_time()
    redact_text(text)
    return time.thread_time() - before_s


def test_a_name_of_the_longest_kind_is_no_secret_in_linear_time():
    """`fullmatch` of a name with a secret word anywhere in it tried each place of the word."""
    name = "pwd" * 10_000 + "!"
    assert redact({name: SECRET}) == {name: HIDDEN}


def test_a_short_text_stays_whole():
    assert redact_and_shorten("a" * SHORT_CHARACTERS) == "a" * SHORT_CHARACTERS


def test_a_long_text_keeps_its_ends():
    text = redact_and_shorten(f"{'a' * 5_000} is no topic; write tenant/namespace/name")
    assert len(text) < SHORT_CHARACTERS + 100
    assert text.startswith("aaaa")
    assert text.endswith("a is no topic; write tenant/namespace/name")
    assert "characters left out]" in text


def test_of_a_text_that_is_too_long_to_be_read_the_end_is_left_out():
    text = redact_and_shorten("a" * 30_000 + "end")
    assert len(text) < SHORT_CHARACTERS + 100
    assert text.endswith(f"… [{30_003 - SHORT_CHARACTERS // 2:,} characters left out]")


@pytest.mark.parametrize(
    "secret",
    [
        "password=hunter2",
        "password: hunter2",
        "password = hunter2",
        "the password is hunter2",
        "Authorization: Bearer hunter2hunter2",
        '"password": "my hunter2 phrase"',
        "kafka://admin:hunter2@host:9092/channel",
        "admin:hunter2@host:9092",
    ],
)
@pytest.mark.parametrize("cut", [SHORT_CHARACTERS // 2, READ_CHARACTERS])
def test_no_cut_parts_a_secret_from_its_name(secret: str, cut: int):
    for shift in range(len(secret) + 4):
        before = f"{'x ' * cut}"[: cut - shift]
        for text in (f"{before}{secret} {'y' * 5_000}", f"{'x' * 9_000} {secret} {'y' * (cut - shift)}"):
            assert "hunter2" not in redact_text(text)
            assert "hunter2" not in redact_and_shorten(text), shift
        middle = f"{'x ' * 1_500}{secret} {'y' * (SHORT_CHARACTERS // 2 - shift)}"
        assert "hunter2" not in redact_and_shorten(middle), shift
