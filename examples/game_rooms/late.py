"""What a former owner does that wakes up late: it writes under the token that it had. The store must refuse.

python late.py remember room-1 > claim.json      # while the owner of the room lives
python late.py write room-1 < claim.json         # when the room has another owner
"""

import asyncio
import json
import sys

from loadmanager import Bundle, Claim, FencedOut, Router, Token
from loadmanager.fencing import SqliteStore

BROKERS = [f"http://127.0.0.1:{port}" for port in (7201, 7202, 7203)]


async def remember(key):
    async with Router(BROKERS) as router:
        route = await router.route(key)
    print(json.dumps({"owner": route.url("http"), "bundle": str(route.bundle), "token": str(route.token)}))


def write(key, remembered):
    claim = Claim(Bundle.parse(remembered["bundle"]), Token.parse(remembered["token"]))
    try:
        with SqliteStore("rooms.db").writing(claim, key) as cursor:
            cursor.execute("DELETE FROM move")
    except FencedOut as refused:
        print(f"refused: {refused}")
    else:
        sys.exit("the store took a late write")


if __name__ == "__main__":
    if sys.argv[1] == "remember":
        asyncio.run(remember(f"game/rooms/{sys.argv[2]}"))
    else:
        write(f"game/rooms/{sys.argv[2]}", json.load(sys.stdin))
