"""Writes the views of a lake into a DuckDB file, for programs that read such files: a job for cron.

    python -m examples.history.export LAKE FILE

Readers of the old file go on reading it; who opens the file later gets the new one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from loadmanager.errors import Invalid, NotFound
from loadmanager.history.duck import export

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m examples.history.export LAKE FILE")
    try:
        export(Path(sys.argv[1]), Path(sys.argv[2]))
    except (Invalid, NotFound) as error:
        sys.exit(str(error))
