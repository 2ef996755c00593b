"""A sharded service of threads, as a Flask application behind a threaded server is one: greets by name.

python -m examples.embed_sync sqlite:cluster.db             # in several terminals
"""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from loadmanager import Moved, NotServing, SyncBroker
from loadmanager.client.redirection import problem_of

NAMESPACE = "examples/greetings"


class Handler(BaseHTTPRequestHandler):
    """One request, on a thread of its own."""

    broker: SyncBroker  # set before the first request

    def do_GET(self):
        broker, name = self.broker, self.path.removeprefix("/greetings/")
        try:
            with broker.admit(f"{NAMESPACE}/{name}", cluster=self.headers.get("Loadmanager-Cluster")):
                self.answer(200, {}, f"Hello {name}, from {broker.name}\n".encode())
        except (Moved, NotServing) as elsewhere:
            self.answer(*problem_of(elsewhere))

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


def main(log):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    with SyncBroker(log=log, urls={"http": url}) as Handler.broker:
        Handler.broker.ensure_namespace(NAMESPACE)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        Handler.broker.run_until_signal(lambda: print(url, Handler.broker.name, flush=True))
    server.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
