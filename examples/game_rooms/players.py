"""Twelve players, each alone in a room, make ten moves a second. Afterwards each room is compared with what was played.

python players.py 30           # for so many seconds
"""

import asyncio
import sys
import time
import uuid
from collections import Counter
from contextlib import suppress

from aiohttp import WSMsgType

from loadmanager import Router
from loadmanager.client.redirection import error_of

BROKERS = [f"http://127.0.0.1:{port}" for port in (7201, 7202, 7203)]
ROOMS, PAUSE_S, ANSWER_S, CLOSE_S, BUDGET_S = 12, 0.1, 2.0, 0.1, 60.0


class Player:
    def __init__(self, router, room, times):
        self.router, self.room, self.times = router, room, times
        self.played, self.seen = [], []  # ids: of my moves, and of all moves of the room in their order
        self.socket, self.where = None, ""

    async def move(self, text):
        """Return when the room has the move. It has the same id each time it is sent, so it counts once."""
        said, begun_s = {"id": uuid.uuid4().hex, "text": text}, time.monotonic()
        self.played.append(said["id"])
        await self.router.call(f"game/rooms/{self.room}", lambda route: self.say(route, said), budget_s=BUDGET_S)
        self.times.append(time.monotonic() - begun_s)

    async def say(self, route, said):
        """One attempt. The router makes another one after Moved, NotServing, and every error of the connection."""
        try:
            async with asyncio.timeout(ANSWER_S):
                socket = self.socket or await self.connect(route.url("http"))
                await socket.send_json(said)
                while said["id"] not in self.seen:
                    await self.hear(socket)
        except BaseException:
            await self.leave()
            raise

    async def connect(self, url):
        self.where, path = url, f"/rooms/{self.room}?after={len(self.seen)}"
        pin = self.router.directory.pin.headers()  # our cluster: another one refuses
        self.socket = await self.router.session.ws_connect(url + path, headers=pin)
        return self.socket

    async def hear(self, socket):
        """Take one message: a move, or word that the room is elsewhere."""
        message = await socket.receive()
        if message.type is not WSMsgType.TEXT:
            raise ConnectionError("the socket was closed")
        told = message.json()
        if elsewhere := error_of(told.get("status", 200), {}, message.data.encode()):
            raise elsewhere
        if told["number"] > len(self.seen) + 1:
            raise RuntimeError(f"{self.room}: after move {len(self.seen)} comes move {told['number']}")
        if told["number"] == len(self.seen) + 1:  # else we have it already
            self.seen.append(told["id"])

    async def leave(self):
        if self.socket is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self.socket.close()
        self.socket = None


async def main(seconds):
    async with Router(BROKERS) as router:
        times, end_s = [], time.monotonic() + seconds
        players = [Player(router, f"room-{i}", times) for i in range(ROOMS)]

        async def play(player):
            while time.monotonic() < end_s:
                await player.move("e4")
                await asyncio.sleep(PAUSE_S)
            await player.leave()

        async with asyncio.TaskGroup() as games:
            reporting = asyncio.create_task(report(players, times))
            for player in players:
                games.create_task(play(player))
        reporting.cancel()
        print(f"the slowest of {len(times)} moves took {max(times):.2f} s")
        return await compare(router, players)


async def report(players, times):
    reported = 0
    while True:
        await asyncio.sleep(1)
        new, reported = times[reported:], len(times)
        where = sorted(Counter(player.where[-5:] for player in players if player.where).items())
        rooms = ", ".join(f"{count} on {port}" for port, count in where)
        print(f"{len(new):3} moves, the slowest took {max(new, default=0):.2f} s; rooms: {rooms}", flush=True)


async def compare(router, players):
    lost = doubled = 0
    for player in players:
        reader = Player(router, player.room, [])
        await reader.move("good game")  # to see this move, the reader hears all that came before it
        await reader.leave()
        lost += len(set(player.played) - set(reader.seen))
        doubled += len(reader.seen) - len(set(reader.seen))
    print(f"{lost} lost, {doubled} doubled")
    return lost + doubled


if __name__ == "__main__":
    sys.exit(asyncio.run(main(float(sys.argv[1]))))
