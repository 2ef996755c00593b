"""The kubelet as a process: `python -m stack.kubernetes.kubelet ORDERS`, with orders as JSON; ends on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import sys
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from stack.kubernetes.kubelet.agent import Kubelet, Orders
from stack.kubernetes.kubelet.api import Api


async def main(orders: Orders) -> None:
    """Until SIGTERM."""
    api = Api(orders.url, Path(orders.authority), Path(orders.certificate), Path(orders.key))
    async with api, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        kubelet = Kubelet(orders, api, session)
        runner = await _serve(kubelet, orders)
        running = asyncio.create_task(kubelet.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        await asyncio.wait([running])
        await runner.cleanup()
        if not running.cancelled():
            running.result()


async def _serve(kubelet: Kubelet, orders: Orders) -> web.AppRunner:
    """What the API server asks a node: logs. Without following, nor those of former containers."""

    async def health(request: web.Request) -> web.Response:
        return web.Response(status=200 if kubelet.ready else 503)

    async def logs(request: web.Request) -> web.Response:
        place = request.match_info
        text = await asyncio.to_thread(kubelet.log_of, place["namespace"], place["pod"], place["container"])
        return web.Response(status=404, text="no log") if text is None else web.Response(body=text)

    app = web.Application()
    app.router.add_get("/healthz", health)
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(orders.server_certificate, orders.server_key)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, orders.address, orders.port, ssl_context=context).start()
    return runner


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Orders)))
