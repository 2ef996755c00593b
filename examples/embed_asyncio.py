"""A sharded asyncio service: greets by name, and each name is greeted by one process at a time.

    python -m examples.embed_asyncio sqlite:cluster.db          # in several terminals

What embeds the broker are the lines that name it. A service that keeps something by bundle gives it a `BundleHost` as
well: see `loadmanager/demo/counter`.
"""

import asyncio
import sys

from aiohttp import web

from loadmanager import Broker, Moved, NotServing
from loadmanager.client.redirection import problem_of

NAMESPACE = "examples/greetings"


class Greetings:
    broker: Broker  # set before the first request

    async def get(self, request):
        name = request.match_info["name"]
        try:
            async with self.broker.admit(f"{NAMESPACE}/{name}", cluster=request.headers.get("Loadmanager-Cluster")):
                return web.Response(text=f"Hello {name}, from {self.broker.name}\n")
        except (Moved, NotServing) as elsewhere:
            status, headers, body = problem_of(elsewhere)
            return web.Response(status=status, headers=headers, body=body)


async def main(log):
    greetings, app = Greetings(), web.Application()
    app.router.add_get("/greetings/{name}", greetings.get)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with Broker(log=log, urls={"http": url}) as greetings.broker:
        await greetings.broker.ensure_namespace(NAMESPACE)
        await greetings.broker.run_until_signal(lambda: print(url, greetings.broker.name, flush=True))
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
