"""A sharded FastAPI service: greets by name. The broker lives as long as the application.

GREETINGS_LOG=sqlite:cluster.db GREETINGS_PORT=8001 python -m examples.embed_fastapi      # another port each
"""

import os
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request, Response

from loadmanager import Broker, Moved, NotServing
from loadmanager.client.redirection import problem_of

NAMESPACE = "examples/greetings"
PORT = int(os.environ.get("GREETINGS_PORT", "8001"))
URL = f"http://127.0.0.1:{PORT}"

broker = Broker(log=os.environ.get("GREETINGS_LOG", "sqlite:greetings.db"), urls={"http": URL})


@asynccontextmanager
async def lifespan(_: FastAPI):
    async with broker:
        await broker.ensure_namespace(NAMESPACE)
        print(URL, broker.name, flush=True)
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(Moved)
@app.exception_handler(NotServing)
async def elsewhere(_: Request, error: Moved | NotServing) -> Response:
    status, headers, body = problem_of(error)
    return Response(body, status, headers)


@app.get("/greetings/{name}")
async def greet(request: Request, name: str) -> dict[str, str]:
    async with broker.admit(f"{NAMESPACE}/{name}", cluster=request.headers.get("Loadmanager-Cluster")):
        return {"greeting": f"Hello {name}", "from": broker.name}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
