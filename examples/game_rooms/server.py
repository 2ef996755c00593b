"""Game rooms: a room is in the memory of one process, and all of its players are connected to that process.

python server.py 7101          # in several terminals, each with its own port
"""

import asyncio
import sys
from collections import defaultdict
from contextlib import suppress

from aiohttp import WSCloseCode, web

from loadmanager import Broker, BundleLoad, Claim, Key, Moved, NotServing
from loadmanager.client.redirection import problem_of
from loadmanager.fencing import SqliteStore

NAMESPACE = "game/rooms"
TABLE = """
CREATE TABLE IF NOT EXISTS move (
    room TEXT, number INTEGER, position INTEGER, id TEXT, text TEXT, PRIMARY KEY (room, number)
)"""


class Room:
    """What a room has in memory: its moves by their ids, in the order of play, and the sockets of its players."""

    def __init__(self):
        self.moves, self.players, self.turn = {}, set(), asyncio.Lock()


class Rooms:
    """The state of this process, and what it does when a bundle of rooms comes or goes: a `BundleHost`."""

    broker: Broker  # set by `main`

    def __init__(self, file):
        self.held = {}  # the rooms of each bundle that we own
        self.store = SqliteStore(file)
        self.store.create()
        with self.store.transaction() as cursor:
            cursor.execute(TABLE)

    # 1. Bundles come and go

    async def prepare(self, bundle):
        """Nothing to warm up."""

    async def acquire(self, bundle, token, hand_off):
        self.held[bundle] = await asyncio.to_thread(self.read, Claim(bundle, token))

    async def release(self, bundle, to):
        await self.broker.quiesce(bundle)  # the players are told to go; wait until they have gone
        self.held.pop(bundle, None)

    async def abandon(self, bundle):
        await self.release(bundle, None)

    async def load(self):
        return {
            bundle: BundleLoad(keys=len(rooms), sessions=sum(len(room.players) for room in rooms.values()))
            for bundle, rooms in self.held.items()
        }

    # 2. Players come and go

    async def connect(self, request):
        socket, name = web.WebSocketResponse(heartbeat=10), request.match_info["room"]
        cluster = request.headers.get("Loadmanager-Cluster")
        await socket.prepare(request)
        try:
            async with self.broker.admit(f"{NAMESPACE}/{name}", cluster=cluster) as claim:  # ours, or whose it is
                leaving = asyncio.create_task(self.see_off(claim, socket))
                try:
                    await self.play(claim, name, socket, int(request.query.get("after", 0)))
                finally:
                    leaving.cancel()
        except (Moved, NotServing) as elsewhere:  # FencedOut is a NotServing
            await self.send_on(socket, elsewhere)
        return socket

    async def see_off(self, claim, socket):
        await self.send_on(socket, await self.broker.left(claim))  # waits until the bundle leaves this process

    async def send_on(self, socket, elsewhere):
        print(f"a player is sent on: {elsewhere}", flush=True)
        _, _, problem = problem_of(elsewhere)  # what a 421 or 503 would say
        with suppress(ConnectionError):
            await socket.send_str(problem.decode())
            await socket.close(code=WSCloseCode.SERVICE_RESTART)

    # 3. Moves

    async def play(self, claim, name, socket, after):
        room = self.held[claim.bundle][name]
        async with room.turn:
            for move in list(room.moves.values())[after:]:  # what the player missed
                await socket.send_json(move)
            room.players.add(socket)
        try:
            async for message in socket:  # ends when the player leaves, and when `send_on` closes the socket
                await self.move(claim, name, room, message.json())
        finally:
            room.players.discard(socket)

    async def move(self, claim, name, room, said):
        async with room.turn:
            if said["id"] not in room.moves:  # else the player repeats what we have
                move = {"number": len(room.moves) + 1, "id": said["id"], "text": said["text"]}
                await asyncio.to_thread(self.write, claim, name, move)
                room.moves[said["id"]] = move
            for player in room.players:
                with suppress(ConnectionError):
                    await player.send_json(room.moves[said["id"]])

    # 4. The store: it has the last word on who owns a room

    def read(self, claim):
        rooms = defaultdict(Room)
        with self.store.raising(claim) as cursor:  # from here on the store refuses the former owner
            query = "SELECT room, number, id, text FROM move WHERE position >= ? AND position < ? ORDER BY number"
            for name, number, move_id, text in cursor.execute(query, claim.bundle.bounds):
                rooms[name].moves[move_id] = {"number": number, "id": move_id, "text": text}
        return rooms

    def write(self, claim, name, move):
        key = Key.parse(f"{NAMESPACE}/{name}")
        with self.store.writing(claim, key) as cursor:  # raises FencedOut if the bundle has a newer owner
            row = (name, move["number"], key.position, move["id"], move["text"])
            cursor.execute("INSERT INTO move VALUES (?, ?, ?, ?, ?)", row)


async def main(port):
    rooms, app = Rooms("rooms.db"), web.Application()
    app.router.add_get("/rooms/{room:[a-z0-9-]+}", rooms.connect)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    address, url = f"127.0.0.1:{port + 100}", f"http://127.0.0.1:{port}"
    async with Broker(rooms, log="sqlite:cluster.db", advertised=address, urls={"http": url}) as rooms.broker:
        await rooms.broker.ensure_namespace(NAMESPACE, bundles=6)
        await rooms.broker.run_until_signal(lambda: print(f"players: {url}  admin: http://{address}", flush=True))
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
