"""Deletes a group of Kafka with its committed offsets, in a process of its own.

Only an admin client can delete a group, and one that asks a group's coordinator may end its process (see
`group_offsets.py`). That process must not be the one that serves. It reads what to do from its standard input, since
settings hold passwords, and writes the number and text of Kafka's error; 0: none.
"""

# pyright: reportPrivateImportUsage=false
# (the client documents these names under `confluent_kafka.admin` and does not declare them exported)
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from statechannel.errors import LogUnavailable

START_S = 20.0
"""How long such a process may take to start and to end, beside what it waits for Kafka."""
RETRY_S = 0.1
FINAL = frozenset(
    {
        KafkaError.NO_ERROR,
        KafkaError.NON_EMPTY_GROUP,
        KafkaError.GROUP_ID_NOT_FOUND,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INVALID_GROUP_ID,
    }
)


def delete_group(settings: Mapping[str, Any], group: str, timeout_s: float) -> tuple[int, str]:
    """The number and text of Kafka's last answer, which is in `FINAL` unless time ran out. `settings` are those of an
    admin client. Blocks. Raises LogUnavailable if the process died."""
    asked = json.dumps({"settings": {**settings}, "group": group, "timeout_s": timeout_s})
    command = [sys.executable, "-m", "statechannel.adapters.kafka.group_deletion"]
    try:
        run = subprocess.run(
            command,
            input=asked,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=timeout_s + START_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LogUnavailable(f"the process that deletes offsets of {group} did not end: {error}") from None
    if run.returncode:
        raise LogUnavailable(f"the process that deletes offsets of {group} died ({run.returncode}): try again")
    code, text = json.loads(run.stdout)
    return code, text


def main() -> None:
    """Delete what standard input names; asks again while Kafka cannot tell."""
    asked = json.load(sys.stdin)
    group, deadline_s = asked["group"], time.monotonic() + asked["timeout_s"]
    admin = AdminClient(asked["settings"])
    while True:
        left_s = max(0.1, deadline_s - time.monotonic())
        try:
            admin.delete_consumer_groups([group], request_timeout=left_s)[group].result(left_s + 1)
            answer = KafkaError.NO_ERROR, ""
        except KafkaException as error:
            answer = error.args[0].code(), error.args[0].str()
        except TimeoutError:
            answer = KafkaError._TIMED_OUT, "no answer"  # noqa: SLF001 (public, in spite of its name)
        if answer[0] in FINAL or time.monotonic() + RETRY_S > deadline_s:
            break
        time.sleep(RETRY_S)
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # the end of a client may end the process too


if __name__ == "__main__":
    main()
