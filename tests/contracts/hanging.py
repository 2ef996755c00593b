"""Calls a client's `abandon` as a watchdog does."""

from __future__ import annotations

import threading

from statechannel.ports import Coordination


def abandon_from_a_thread(client: Coordination) -> None:
    """From another thread, while the loop of the caller hangs until it is done."""
    thread = threading.Thread(target=client.abandon)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive(), "it waits for the loop"
