"""Pages with parts that are drawn from the code: what stands between `<!-- drawn: NAME -->` and `<!-- end: NAME -->`.

A script beside its page calls `draw(…)`: it writes the page again; with `--check` it writes nothing and exits 1 if the
page is stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def drawn(page: Path, drawings: Mapping[str, Callable[[], str]]) -> str:
    """The page's text with everything between its markers drawn again."""
    text = page.read_text(encoding="utf-8")
    for name, draw_one in drawings.items():
        begin, end = f"<!-- drawn: {name} -->", f"<!-- end: {name} -->"
        found = re.findall(re.escape(begin) + ".*?" + re.escape(end), text, re.DOTALL)
        if len(found) != 1:
            sys.exit(f"{page.name} must have {begin} and {end} once")
        text = text.replace(found[0], f"{begin}\n\n{draw_one()}\n\n{end}")
    return text


def draw(page: Path, drawings: Mapping[str, Callable[[], str]]) -> None:
    """What a script does with its command line."""
    text = drawn(page, drawings)
    if "--check" not in sys.argv[1:]:
        page.write_text(text, encoding="utf-8")
    elif text != page.read_text(encoding="utf-8"):
        sys.exit(f"docs/{page.name} is stale: run `python docs/{Path(sys.argv[0]).name}`")
