"""Build the site from a checkout: its sources into a folder of their own, then Sphinx. Needs the extra `book`."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.staff.site import packed_text, reference, source_pages, view_states

FOLDER = Path(__file__).parent  # of conf.py
MARK = ".buildinfo"  # Sphinx leaves it in what it builds
NEEDED = ("sphinx", "myst_nb", "sphinx_book_theme", "jax", "matplotlib", "tensorflow")


@dataclass(frozen=True)
class Book:
    """A site on the disk; prints as one line.

    page        the file to open
    pages       HTML files
    size_bytes  of all files together
    seconds     that building took
    """

    page: Path
    pages: int
    size_bytes: int
    seconds: float

    def __str__(self) -> str:
        size = f"{self.size_bytes / 1e6:.1f} MB"
        return f"{self.page}: {self.pages} pages, {size}, in {self.seconds:.0f} s; open it in a browser"


def build(checkout: Path, out: Path, at: Callable[[str], None] = lambda words: None) -> Book:
    """Write the site of a checkout's README, lessons, exercises and library.

    out     the folder to write, replaced as a whole once all pages are made
    at      takes where the work is, in words
    Raises  CourseError for a link that leads nowhere, for anything else that Sphinx warns
            of, for a folder that holds something else, and where a package is missing
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CourseError(f"the book needs {', '.join(missing)}; `make book` sets that up")
    if out.exists() and not (out / MARK).is_file():
        raise CourseError(f"{out} is there already and holds no book; name another folder, or remove it")
    began = time.perf_counter()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".book-", dir=out.parent) as scratch:
        source, fresh = Path(scratch, "source"), Path(scratch, "html")
        source_pages.stage(checkout, source)
        reference.stage(checkout, source / "reference")
        at("pages")
        _run_sphinx(source, fresh, Path(scratch))
        packed_text.stage_pages(fresh)
        at("views")
        view_states.stage(fresh / "_static" / "views")
        shutil.rmtree(out, ignore_errors=True)
        os.replace(fresh, out)
    files = [path for path in out.rglob("*") if path.is_file()]
    count = sum(path.suffix == ".html" and "_static" not in path.parts for path in files)
    return Book(out / "index.html", count, sum(path.stat().st_size for path in files), time.perf_counter() - began)


def _run_sphinx(source: Path, out: Path, scratch: Path) -> None:
    """Raises CourseError with all of Sphinx's warnings, a line each."""
    said = scratch / "warnings"  # without what the library's frameworks print
    said.touch()
    command = [sys.executable, "-m", "sphinx", "-q", "-N", "-w", said, "-c", FOLDER, "-d", scratch / "doctrees"]
    done = subprocess.run([*command, source, out], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    warnings = [line for line in said.read_text().splitlines() if line.strip()]
    if warnings or done.returncode:
        lines = "".join(f"\n  {line.replace(f'{source}{os.sep}', '')}" for line in warnings or done.stdout.splitlines())
        raise CourseError(f"the book was not written, because of these warnings:{lines}")
