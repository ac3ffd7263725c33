"""Text for a page's script, compressed: a page that was opened from a file may fetch none. Standard library only."""

import base64
import gzip
import json
import re
from pathlib import Path

_MAIN = re.compile(r"<main .*</main>", re.DOTALL)
_DATA = re.compile(r'src="data:[^"]*"')  # pictures, which no excerpt shows


def call(function: str, *words: str, value: object) -> str:
    """A script that hands a value to a function of the page.

    words  what the function takes before it
    value  whatever JSON holds; it arrives as gzip in base64
    """
    packed = base64.b64encode(gzip.compress(json.dumps(value).encode(), mtime=0)).decode()
    return f"{function}({', '.join(json.dumps(word) for word in (*words, packed))});\n"


def stage_pages(site: Path) -> None:
    """Write _static/pages.js: each page's main part by its address from the site's root, for the search's excerpts."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        main = _MAIN.search(path.read_text())
        if main:
            pages[path.relative_to(site).as_posix()] = _DATA.sub("", main[0])
    (site / "_static" / "pages.js").write_text(call("coursePages", value=pages))
