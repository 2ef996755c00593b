"""Asks the coordinator of one group, wherever it is: heartbeats, commits, the farewell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import quote

import msgspec

from loadmanager.client.http_router import HttpAnswer, HttpRouter
from loadmanager.consumer.progress import Place
from loadmanager.consumers.coordinator.messages import Answer, Beat, Refusal, group_key
from loadmanager.consumers.coordinator.records import Partition
from loadmanager.errors import Conflict, Forbidden, Invalid, NotKnown, Unavailable

_answer, _refusal = msgspec.json.Decoder(Answer), msgspec.json.Decoder(Refusal)


T = TypeVar("T")


class _Refused(msgspec.Struct):
    refused: dict[str, dict[int, Refusal]]


_refused = msgspec.json.Decoder(_Refused)


class GroupClient:
    """Finds the coordinator by a lookup, and again when the group's bundle has moved. Raises InvalidName."""

    def __init__(self, http: HttpRouter, group: str) -> None:
        key = group_key(group)
        self.group = key.full_name
        self._http = http
        self._coordinator = ""
        self._commits = 0
        name = self.group.partition("://")[2].removeprefix(f"{key.namespace}/")
        self._path = f"/v1/groups/{quote(key.namespace)}/{quote(name, safe='')}"

    async def heartbeat(self, member: str, beat: Beat, wait_ms: int, budget_s: float) -> Answer | Refusal:
        """Raises as `HttpRouter.post`; Invalid for a heartbeat that makes no sense, Forbidden if we may not ask."""
        path = f"{self._path}/members/{quote(member, safe='')}/heartbeat?wait_ms={wait_ms}"
        answer = await self._http.post(self.group, path, beat, budget_s=budget_s)
        if answer.status == 409:
            return _read(_refusal, answer)
        _check(answer)
        found = _read(_answer, answer)
        self._coordinator = found.coordinator
        return found

    async def commit(
        self, member: str, epoch: int, revision: int, places: Mapping[Partition, Place], budget_s: float
    ) -> dict[Partition, Refusal]:
        """Store where the group goes on, and what it has pulled; what was refused. One call at a time.

        A coordinator that we have not heard of yet refuses the commit, since it may be a late one: it says so, and gets
        it again. Raises as `heartbeat`, and Conflict if the group has members of Kafka's own protocols.
        """
        offsets: dict[str, dict[int, int]] = {}
        pulled: dict[str, dict[int, int]] = {}
        for (topic, number), place in places.items():
            offsets.setdefault(topic, {})[number] = place.commit
            pulled.setdefault(topic, {})[number] = place.pull
        body = {"epoch": epoch, "revision": revision, "offsets": offsets, "pulled": pulled}
        path = f"{self._path}/members/{quote(member, safe='')}/commit"
        while True:
            self._commits += 1
            numbered = {**body, "sequence": self._commits, "coordinator": self._coordinator}
            answer = await self._http.post(self.group, path, numbered, budget_s=budget_s)
            _check(answer)
            nested = _read(_refused, answer).refused
            found = {(topic, number): each for topic, its in nested.items() for number, each in its.items()}
            other = next((each.coordinator for each in found.values() if each.coordinator), self._coordinator)
            if other == self._coordinator:
                return found
            self._coordinator = other

    async def leave(self, member: str, process: str, budget_s: float) -> None:
        """Say farewell. Raises as `heartbeat`."""
        path = f"{self._path}/members/{quote(member, safe='')}?process={quote(process, safe='')}"
        _check(await self._http.request("DELETE", self.group, path, None, budget_s=budget_s))


def _read(decoder: msgspec.json.Decoder[T], answer: HttpAnswer) -> T:
    """Raises Unavailable for what no coordinator says: something else answers in its place."""
    try:
        return decoder.decode(answer.body)
    except msgspec.MsgspecError as error:
        shown = answer.body[:200].decode("utf-8", "replace")
        raise Unavailable(f"an answer that no coordinator gives ({error}): {shown}") from error


def _check(answer: HttpAnswer) -> None:
    if answer.status in (200, 204):
        return
    try:
        detail = str(answer.json()["detail"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        detail = answer.body[:200].decode("utf-8", "replace")
    match answer.status:
        case 400 | 412 | 413:
            raise Invalid(detail)
        case 401:
            raise NotKnown(detail)
        case 403:
            raise Forbidden(detail)
        case 409:
            raise Conflict(detail)
        case _:
            raise Unavailable(f"the coordinator answered {answer.status}: {detail}")
