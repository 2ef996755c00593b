"""Fences beside the service's own keys in Redis, as scripts that Redis runs alone: `RedisStore`, `AsyncRedisStore`.

A failed Redis loses what it had not written or replicated. It may also evict keys, and fences with them. Configure
`appendfsync always` and `maxmemory-policy noeviction`. If a fence is lost, writes are refused. In a Redis Cluster the
keys of a script must be in one slot: put `{tenant/namespace}` into their names, as in those of fences.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from loadmanager.broker.serving import Claim
from loadmanager.fencing.fences import driver, position_in, raise_refused, write_refused
from statechannel.law.bundle import Key

DEFAULT_PREFIX = "loadmanager:fence:"
RedisKey = str | bytes

_RANGES = r"""
local function stored(fence, lo, hi)
  local ranges = redis.call('ZREVRANGEBYSCORE', fence, lo, '-inf', 'LIMIT', 0, 1)
  for _, range in ipairs(redis.call('ZRANGEBYSCORE', fence, '(' .. lo, '(' .. hi)) do table.insert(ranges, range) end
  local found = {}
  for _, range in ipairs(ranges) do
    local from, to, token = string.match(range, '^(%d+) (%d+) (%S+)$')
    if tonumber(to) > tonumber(lo) then table.insert(found, {range, from, to, token}) end
  end
  return found
end
"""
"""Ranges are members of a sorted set, `lo hi token`, scored by `lo`. Tokens have fixed width and compare as text."""

_RAISE = f"""{_RANGES}
local fence, lo, hi, token = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local own, found, highest = lo .. ' ' .. hi .. ' ' .. token, stored(KEYS[1], ARGV[1], ARGV[2]), ''
if #found == 1 and found[1][1] == own then return 'OK' end
for _, range in ipairs(found) do if range[4] > highest then highest = range[4] end end
if highest >= token then return redis.error_reply('FENCED ' .. highest) end
for _, range in ipairs(found) do
  local from, to, known = range[2], range[3], range[4]
  redis.call('ZREM', fence, range[1])
  if tonumber(from) < tonumber(lo) then redis.call('ZADD', fence, from, from .. ' ' .. lo .. ' ' .. known) end
  if tonumber(to) > tonumber(hi) then redis.call('ZADD', fence, hi, hi .. ' ' .. to .. ' ' .. known) end
end
redis.call('ZADD', fence, lo, own)
return 'OK'
"""

_CHECK = f"""{_RANGES}
do
  local token, position, fence = table.remove(ARGV), table.remove(ARGV), table.remove(KEYS)
  local found = stored(fence, position, string.format('%.0f', position + 1))
  if #found == 0 then return redis.error_reply('FENCED none') end
  if found[1][4] ~= token then return redis.error_reply('FENCED ' .. found[1][4]) end
end
"""
"""Runs before the service's own script, and removes its own KEYS and ARGV first."""

_COMMAND = "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))"

Call = tuple[str, Sequence[RedisKey], Sequence[object]]


class _Calls:
    """The common part of both stores: the scripts, and the errors of refusals."""

    def __init__(self, client: Any, prefix: str, package: str) -> None:
        self._client: Any = driver(package, "redis").from_url(client) if isinstance(client, str) else client
        self._prefix = prefix
        self._refusal: type[Exception] = driver("redis.exceptions", "redis").ResponseError
        self._scripts: dict[str, Any] = {}

    def _raising(self, claim: Claim) -> Call:
        return _RAISE, [self._fence(claim)], [*claim.bundle.bounds, str(claim.token)]

    def _writing(
        self, claim: Claim, key: str | Key, script: str, keys: Sequence[RedisKey], args: Sequence[object]
    ) -> Call:
        position = position_in(claim, key)
        return _CHECK + script, [*keys, self._fence(claim)], [*args, position, str(claim.token)]

    def _fence(self, claim: Claim) -> str:
        return f"{self._prefix}{{{claim.bundle.namespace}}}"

    def _script(self, text: str) -> Any:
        """The registered script, cached, so that only its digest is sent to Redis."""
        if text not in self._scripts:
            self._scripts[text] = self._client.register_script(text)
        return self._scripts[text]

    @contextmanager
    def _refusing(self, claim: Claim, *, raising: bool = False) -> Generator[None]:
        try:
            yield
        except self._refusal as error:
            mark, _, stored = str(error).partition(" ")
            if mark != "FENCED":
                raise
            stored = stored.split()[0]
            raise (
                raise_refused(claim, stored) if raising else write_refused(claim, None if stored == "none" else stored)
            ) from None


class RedisStore(_Calls):
    """Fences in Redis. Any thread may use it; use `with`, or `close()` it.

    `client` is a `redis.Redis`, or an address (`redis://…`). Write only by `command` and `script`: other writes to
    Redis are not checked.
    """

    def __init__(self, client: Any, *, prefix: str = DEFAULT_PREFIX) -> None:
        super().__init__(client, prefix, "redis")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def raise_fence(self, claim: Claim) -> None:
        """Raise the fence of the claim's bundle; load its data afterwards. Raises FencedOut."""
        script, keys, args = self._raising(claim)
        with self._refusing(claim, raising=True):
            self._script(script)(keys, args)

    def command(self, claim: Claim, key: str | Key, command: str, name: RedisKey, *args: Any) -> Any:
        """Run `command name args…` on data of the key, if the fence allows it. Raises as `script`."""
        return self.script(claim, key, _COMMAND, [name], [command, *args])

    def script(
        self, claim: Claim, key: str | Key, script: str, keys: Sequence[RedisKey] = (), args: Sequence[Any] = ()
    ) -> Any:
        """Run a Lua script together with the check of the fence; returns its result.

        Give the same text each time, since Redis keeps every text. Raises FencedOut, or ValueError for a key of another
        bundle.
        """
        text, keys, args = self._writing(claim, key, script, keys, args)
        with self._refusing(claim):
            return self._script(text)(keys, args)


class AsyncRedisStore(_Calls):
    """`RedisStore` for asyncio, with `await`, over a `redis.asyncio.Redis` or an address."""

    def __init__(self, client: Any, *, prefix: str = DEFAULT_PREFIX) -> None:
        super().__init__(client, prefix, "redis.asyncio")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client."""
        await self._client.aclose()

    async def raise_fence(self, claim: Claim) -> None:
        """As `RedisStore.raise_fence`."""
        script, keys, args = self._raising(claim)
        with self._refusing(claim, raising=True):
            await self._script(script)(keys, args)

    async def command(self, claim: Claim, key: str | Key, command: str, name: RedisKey, *args: Any) -> Any:
        """As `RedisStore.command`."""
        return await self.script(claim, key, _COMMAND, [name], [command, *args])

    async def script(
        self, claim: Claim, key: str | Key, script: str, keys: Sequence[RedisKey] = (), args: Sequence[Any] = ()
    ) -> Any:
        """As `RedisStore.script`."""
        text, keys, args = self._writing(claim, key, script, keys, args)
        with self._refusing(claim):
            return await self._script(text)(keys, args)
