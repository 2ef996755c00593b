"""What a service owes to each hook, whatever way it comes."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime, timedelta

from loadmanager.sidecar.conformance.checking import check
from loadmanager.sidecar.conformance.hook import Answer, Hook, signed
from loadmanager.sidecar.conformance.stage import Stage, expect
from loadmanager.sidecar.wire import Secret
from statechannel.law.bundle import Bundle

OLD = timedelta(minutes=10)


def _forgeries(hook: Hook, secret: Secret) -> dict[str, tuple[dict[str, str], bytes]]:
    """Headers and body of forged copies, by how they are forged."""
    right = signed(hook, secret)
    now = str(int(datetime.now(UTC).timestamp()))
    older = signed(hook, secret, datetime.now(UTC) - timedelta(minutes=1))
    return {
        "without a signature": ({}, hook.body),
        "signed with another secret": (signed(hook, Secret.new()), hook.body),
        "with another body than the signed one": (right, hook.body + b" "),
        "with another webhook-id than the signed one": ({**right, "webhook-id": f"{hook.message_id}0"}, hook.body),
        "with another timestamp than the signed one": ({**older, "webhook-timestamp": now}, hook.body),
    }


@check("signature")
async def signature(stage: Stage) -> None:
    """A hook without the right signature is answered 4xx, and changes nothing."""
    owned, wanted = await stage.serving(), stage.new_bundle()
    for hook in (stage.hook("abandon", owned.bundle), stage.acquiring(wanted)[0]):
        for how, (headers, body) in _forgeries(hook, stage.secret).items():
            _declined(await stage.send(hook, headers=headers, body=body, how=how), f"the hook {hook}, {how}")
    await stage.serves(owned.key, "forged hooks change nothing")
    await stage.refuses(stage.key_in(wanted), "forged hooks change nothing")
    await stage.obeyed(stage.hook("abandon", owned.bundle), "rightly signed")


@check("timestamp")
async def timestamp(stage: Stage) -> None:
    """A hook whose timestamp differs from now by more than five minutes is answered 4xx, and changes nothing."""
    owned = await stage.serving()
    for at, how in ((-OLD, "signed ten minutes ago"), (OLD, "signed ten minutes in the future")):
        hook = stage.hook("abandon", owned.bundle)
        answer = await stage.send(hook, headers=signed(hook, stage.secret, datetime.now(UTC) + at), how=how)
        _declined(answer, f"a hook that was {how}")
    await stage.serves(owned.key, "hooks with a wrong time change nothing")


@check("acquire-twice")
async def acquire_twice(stage: Stage) -> None:
    """The repeat of an `acquire` is answered 2xx, and the bundle is served on."""
    owned = await stage.serving()
    await stage.obeyed(owned.hook, "again")
    await stage.serves(owned.key, "a repeat changes nothing")


@check("release-twice")
async def release_twice(stage: Stage) -> None:
    """The repeat of a `release` is answered as the first one, with the same `hand_off`."""
    owned = await stage.serving()
    hook = stage.hook("release", owned.bundle)
    first = await stage.obeyed(hook)
    expect(isinstance(first.json(), dict), "a JSON object in answer to `release`", first)
    second = await stage.obeyed(hook, "again")
    expect(
        isinstance(second.json(), dict) and second.json().get("hand_off") == first.json().get("hand_off"),
        f"the same hand_off as in the first answer ({first})", second,
    )  # fmt: skip


@check("sequence")
async def sequence(stage: Stage) -> None:
    """A hook with a lower sequence than one that came before for its bundle is answered 409, and changes nothing."""
    late = stage.hook("release", bundle := stage.new_bundle())
    owned = await stage.serving(bundle=bundle)
    _conflict(await stage.send(late, how="late"), late)
    await stage.serves(owned.key, "a release from before its acquire changes nothing")
    await stage.obeyed(stage.hook("release", bundle))
    _conflict(await stage.send(owned.hook, how="again, late"), owned.hook)
    await stage.refuses(owned.key, "a copy of acquire that comes after the release changes nothing")


@check("other-session")
async def other_session(stage: Stage) -> None:
    """A hook of another session is answered 409, and changes nothing."""
    owned = await stage.serving()
    hook = stage.hook("abandon", owned.bundle, session="0123456789abcdef")
    _conflict(await stage.send(hook, how="of another session"), hook)
    await stage.serves(owned.key, "hooks of another session change nothing")


@check("abandon")
async def abandon(stage: Stage) -> None:
    """After the answer to `abandon` the bundle is not served; the same hook for an unknown bundle is answered 2xx."""
    owned = await stage.serving()
    await stage.obeyed(stage.hook("abandon", owned.bundle))
    await stage.refuses(owned.key, "its bundle was abandoned")
    await stage.obeyed(stage.hook("abandon", stage.new_bundle()), "for a bundle that it never had")
    await stage.serving(bundle=owned.bundle)


@check("release-unknown")
async def release_unknown(stage: Stage) -> None:
    """A `release` of a bundle that the service does not have is answered 2xx, without a `hand_off`."""
    answer = await stage.obeyed(stage.hook("release", stage.new_bundle()), "for a bundle that it never had")
    said = answer.json()
    expect(isinstance(said, dict) and said.get("hand_off") is None, "a JSON object without a hand_off", answer)


@check("split")
async def split(stage: Stage) -> None:
    """After a split (release of the parent, acquire of two children) the keys of both children are served."""
    parent = await stage.serving()
    middle = parent.key.position
    await stage.obeyed(stage.hook("release", parent.bundle))
    lower = Bundle(parent.bundle.namespace, parent.bundle.lo, middle)
    upper = Bundle(parent.bundle.namespace, middle, parent.bundle.hi)
    for child in (lower, upper):
        await stage.own(child)
    for position in (lower.lo, middle - 1, middle, upper.hi - 1):
        await stage.serves(stage.key(position), "its bundle was acquired after the split")


@check("hand-off")
async def hand_off(stage: Stage) -> None:
    """What `release` returned may come back with a later `acquire` of the same bundle, under a higher token."""
    owned = await stage.serving()
    handed = _handed(await stage.obeyed(stage.hook("release", owned.bundle)))
    again = await stage.serving(bundle=owned.bundle, hand_off=handed)
    expect(again.token > owned.token, "a higher token", again.token)


@check("fence")
async def fence(stage: Stage) -> None:
    """An `acquire` under a lower token than the storage has seen for the bundle is declined with 4xx."""
    older = stage.new_token()
    owned = await stage.serving()
    await stage.obeyed(stage.hook("release", owned.bundle))
    hook, _ = stage.acquiring(owned.bundle, token=older)
    answer = await stage.send(hook, how=f"under token {older}, after {owned.token}")
    _declined(answer, "an acquire under an older token")
    await stage.refuses(owned.key, "its acquire was declined")


def _handed(answer: Answer) -> bytes | None:
    said = answer.json()
    expect(isinstance(said, dict), "a JSON object in answer to `release`", answer)
    handed = said.get("hand_off")
    if handed is None:
        return None
    try:
        decoded = base64.b64decode(handed, validate=True)
    except (binascii.Error, TypeError, ValueError):
        decoded = None
    expect(decoded is not None and len(decoded) <= 65_536, "a hand_off in base64, of at most 64 KiB", answer)
    return decoded


def _declined(answer: Answer, what: str) -> None:
    expect(answer.declined, f"4xx for {what}", answer)


def _conflict(answer: Answer, hook: Hook) -> None:
    expect(answer.status == 409, f"409 for the hook {hook}", answer)
