"""A sharded Flask application: greets by name. gunicorn runs it, see `embed_flask_gunicorn.py`."""

import os

from flask import Flask, request

from loadmanager import Moved, NotServing, SyncBroker
from loadmanager.client.redirection import problem_of

NAMESPACE = "examples/greetings"
PORT = os.environ.get("GREETINGS_PORT", "8001")
URL = f"http://127.0.0.1:{PORT}"

app = Flask(__name__)
broker = SyncBroker(log=os.environ.get("GREETINGS_LOG", "sqlite:greetings.db"), urls={"http": URL})


@app.errorhandler(Moved)
@app.errorhandler(NotServing)
def elsewhere(error):
    status, headers, body = problem_of(error)
    return body, status, headers


@app.get("/greetings/<name>")
def greet(name):
    with broker.admit(f"{NAMESPACE}/{name}", cluster=request.headers.get("Loadmanager-Cluster")):
        return {"greeting": f"Hello {name}", "from": broker.name}
