"""What spark-submit runs: any `loadmanager history …` command, in the session that spark-submit prepares."""

from __future__ import annotations

import sys

from loadmanager_api.cli.main import main

if __name__ == "__main__":
    main(["history", *sys.argv[1:]])
