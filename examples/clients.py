"""Clients of a sharded service, with asyncio and with threads. Gives the greetings of some names.

python -m examples.clients http://127.0.0.1:8080 ada grace       # the admin URL of any broker, then names
"""

import asyncio
import sys

from loadmanager import BudgetSpent, HttpRouter, NotFound, Router, SyncRouter


async def greet(brokers, names):
    async with HttpRouter(Router(brokers)) as service:  # one for the whole process
        for name in names:
            answer = await service.get(f"examples/greetings/{name}", f"/greetings/{name}", budget_s=5.0)
            print(answer.status, answer.body.decode().strip())


def greet_from_threads(brokers, names):
    with SyncRouter(brokers) as service:
        for name in names:
            answer = service.get(f"examples/greetings/{name}", f"/greetings/{name}", budget_s=5.0)
            print(answer.status, answer.body.decode().strip())


def explain(brokers):
    with SyncRouter(brokers) as service:
        try:
            service.get("no/such/key", "/", budget_s=5.0)
        except NotFound as error:
            print(f"not found: {error}")  # no such namespace: trying again does not help
        except BudgetSpent as error:
            print(f"no answer in time: {error}")  # `error.reason` is the last thing that went wrong


if __name__ == "__main__":
    asyncio.run(greet(sys.argv[1:2], sys.argv[2:]))
    greet_from_threads(sys.argv[1:2], sys.argv[2:])
    explain(sys.argv[1:2])
