"""Settings of gunicorn: one worker with threads, and a broker that starts in that worker, after the fork.

export GREETINGS_LOG=sqlite:cluster.db GREETINGS_PORT=8001      # another port for each process
gunicorn -c python:examples.embed_flask_gunicorn examples.embed_flask:app
"""

import os
import signal
import threading

from examples.embed_flask import NAMESPACE, PORT, URL, broker

bind = f"127.0.0.1:{PORT}"
workers, threads = 1, 16
graceful_timeout = 60  # seconds; longer than `drain_timeout_s` of the broker


def post_worker_init(_worker):
    broker.start()
    broker.ensure_namespace(NAMESPACE)
    stop_worker, left = signal.getsignal(signal.SIGTERM), threading.Event()

    def leave():
        broker.stop()  # moves all bundles away, while this worker still answers
        left.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def on_sigterm(number, frame):
        if not left.is_set():
            threading.Thread(target=leave).start()
        elif callable(stop_worker):  # what gunicorn does on SIGTERM
            stop_worker(number, frame)

    signal.signal(signal.SIGTERM, on_sigterm)
    print(URL, broker.name, flush=True)
