"""Build the site from a checkout: its sources into a folder of their own, then Sphinx. Needs the extra `book`."""

import importlib.util
import io
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.staff.site import reference, source_pages

STATIC, TEMPLATES = (Path(__file__).parent / name for name in ("static", "templates"))
MARK = ".buildinfo"  # Sphinx leaves it in what it builds
NEEDED = ("sphinx", "myst_nb", "sphinx_book_theme")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")

THEME = {
    "navbar_persistent": [],  # the search stands in the sidebar
    "max_navbar_depth": 1,  # deeper, the theme folds with buttons that have no name to hear
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "use_download_button": False,  # a page's source is not the notebook; the checkout and Colab have that
    "use_fullscreen_button": False,
}
SETTINGS = {
    "project": "Distributed training, proved",
    "html_title": "Distributed training, proved",
    "language": "en",
    "extensions": ["myst_nb", "course_lib.staff.site.sphinx_extension"],
    "nb_execution_mode": "off",
    "nb_merge_streams": True,
    "myst_enable_extensions": ["dollarmath"],
    "myst_heading_anchors": 3,
    "myst_heading_slug_func": "course_lib.staff.site.source_pages.anchor",
    "myst_update_mathjax": False,
    "html_math_renderer": "mathml",
    "html_theme": "sphinx_book_theme",
    "html_theme_options": THEME,
    "templates_path": [str(TEMPLATES)],
    "html_static_path": [str(STATIC)],
    "html_css_files": ["book.css"],
    "html_js_files": ["book.js"],
    "html_favicon": str(STATIC / "favicon.svg"),
    "html_copy_source": False,
    "html_show_sphinx": False,
    "html_use_index": False,
    "html_context": {"default_mode": "auto"},  # light or dark, as the reader's system is
    "html_domain_indices": False,
    "add_module_names": False,
    "python_use_unqualified_type_names": True,
    "nitpicky": True,
    "nitpick_ignore_regex": [("py:.*", ".*")],  # a type without a page stays text
}


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


def build(checkout: Path, out: Path) -> Book:
    """Write the site of a checkout's README, lessons, exercises and library.

    out     the folder to write, replaced as a whole once all pages are made
    Raises  CourseError for a link that leads nowhere, for anything else that Sphinx warns
            of, for a folder that holds something else, and where Sphinx is missing
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
        _run_sphinx(source, fresh, Path(scratch, "doctrees"))
        shutil.rmtree(out, ignore_errors=True)
        os.replace(fresh, out)
    files = [path for path in out.rglob("*") if path.is_file()]
    count = sum(path.suffix == ".html" and "_static" not in path.parts for path in files)
    return Book(out / "index.html", count, sum(path.stat().st_size for path in files), time.perf_counter() - began)


def _run_sphinx(source: Path, out: Path, doctrees: Path) -> None:
    """Raises CourseError with all of Sphinx's warnings, a line each."""
    from sphinx.application import Sphinx
    from sphinx.errors import SphinxError
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    said = io.StringIO()
    try:
        with patch_docutils(), docutils_namespace():
            app = Sphinx(source, None, out, doctrees, "html", SETTINGS, status=None, warning=said, freshenv=True)
            app.build()
    except SphinxError as error:
        raise CourseError(f"the book was not written: {error}") from None
    warnings = [line for line in _COLOUR.sub("", said.getvalue()).splitlines() if line.strip()]
    if warnings:
        lines = "".join(f"\n  {line.replace(f'{source}{os.sep}', '')}" for line in warnings)
        raise CourseError(f"the book was not written, because of these warnings:{lines}")
