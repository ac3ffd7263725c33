"""Point the Colab badges, and what the set-up cell installs, at another repository. Needs nothing.

A fork opens its own notebooks and installs itself. Files are edited as bytes, in
these places alone, so that outputs, cell ids and a learner's own cells stay as
they are. Only an exercise that nobody has touched gets a new digest too, or
`course new-exercises` would take it for an edited one.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.notebook_cells import read_notebook
from course_lib.staff.grade.results import write_whole
from course_lib.staff.new_exercises import digest

_NAME = re.compile(r"[A-Za-z0-9](?:-?[A-Za-z0-9]){0,38}/(?!\.\.?$)[\w.-]{1,100}(?<!\.git)", re.ASCII)  # GitHub's rule

# A link to Colab that is not the badge of one of the course's notebooks is somebody's own.
_BADGE = re.compile(
    rb"(?P<before>/colab-badge\.svg\)\]\(https://colab\.research\.google\.com/github/)"
    rb"(?P<repository>[\w.-]+/[\w.-]+)"
    rb"(?=/blob/(?P<branch>[\w.-]+)/(?:notebooks|exercises)/\d\d_[\w.-]+\.ipynb\))"
)
# In the file, the two lines of the set-up cell are two JSON strings, or one with an escaped line end.
_INSTALL = re.compile(
    rb"(?P<before>    import course_lib\\n(?:\",\s*\")?except ImportError:[^\"\\]*\\n(?:\",\s*\")?"
    rb"\s*%pip install -q git\+https://github\.com/)"
    rb"(?P<repository>[\w.-]+/[\w.-]+)"
)


@dataclass(frozen=True)
class Pointed:
    """How many places of one file now name another repository; prints as one line."""

    path: Path
    badges: int
    installs: int

    def __str__(self) -> str:
        badges = f"{self.badges} badge{'s' if self.badges != 1 else ''}"
        return f"{self.path}: {badges}" + (", the line that installs the course" if self.installs else "")


def point_at(repository: str, root: Path) -> list[Pointed]:
    """Rewrite README.md and all lessons, solutions and exercises of the checkout at root.

    repository  OWNER/NAME on GitHub
    Returns     the files that changed, their paths relative to root; none the second time
    Raises      CourseError for a name that is none, or a notebook that cannot be read; then nothing is written
    """
    if not _NAME.fullmatch(repository):
        raise CourseError(f"--repo takes OWNER/NAME as GitHub writes it, such as jane/course, not {repository!r}")
    folders = ("notebooks", "solutions", "exercises")
    paths = [root / "README.md", *(path for name in folders for path in sorted((root / name).glob("*.ipynb")))]
    edits = [(path, *_edited(path, repository.encode())) for path in paths]
    changed = [edit for edit in edits if edit[2] or edit[3]]
    for path, content, *_ in changed:
        write_whole(path, content)
    return [Pointed(path.relative_to(root), *counts) for path, _, *counts in changed]


def home(path: Path) -> tuple[str, str]:
    """The repository and the branch that a notebook's badge opens. Raises CourseError where it has no badge."""
    badge = _BADGE.search(path.read_bytes())
    if badge is None:
        raise CourseError(f"{path} has no Colab badge, which says where on GitHub the course is; take a fresh copy")
    return badge["repository"].decode(), badge["branch"].decode()


def _edited(path: Path, repository: bytes) -> tuple[bytes, int, int]:
    """The file's new content, and how many badges and install lines of it are new."""
    old = path.read_bytes()
    counts = []
    new = old
    for pattern in (_BADGE, _INSTALL):
        counts.append(sum(match["repository"] != repository for match in pattern.finditer(new)))
        new = pattern.sub(lambda match: match["before"] + repository, new)
    if path.suffix == ".ipynb" and new != old:
        new = _with_digest(path, new)
    return new, *counts


def _with_digest(path: Path, new: bytes) -> bytes:
    """An untouched exercise stays one: its digest becomes that of its new cells."""
    notebook = read_notebook(path)
    stored = notebook.get("metadata", {}).get("course", {}).get("digest")
    if stored is None or stored != digest(notebook["cells"]):
        return new
    cells = [{**cell, "source": "".join(cell["source"])} for cell in json.loads(new)["cells"]]
    return new.replace(b'"digest": "%s"' % stored.encode(), b'"digest": "%s"' % digest(cells).encode())
