"""Name the GitHub repository that Colab badges open, and that the set-up cell installs the course from.

The tree as published names none: whoever registers an address that nobody owns runs code on learners' machines. A
fork's own address comes from its git remote, with the commit or tag to install. Only an exercise that nobody has
touched gets a new digest too, or `course new-exercises` would take it for an edited one.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.notebook_cells import read_notebook
from course_lib.staff.grade.results import write_whole
from course_lib.staff.new_exercises import as_bytes, digest

_NAME = r"[A-Za-z0-9](?:-?[A-Za-z0-9]){0,38}/(?!\.\.?(?:@|$))[\w.-]{1,100}(?<!\.git)"  # GitHub's rule
_ADDRESS = re.compile(rf"(?P<repository>{_NAME})(?:@(?P<commit>[\w./-]{{1,100}}))?", re.ASCII)
_REMOTE = re.compile(rf"(?:https://(?:[^@/]*@)?|ssh://git@|git@)github\.com[/:]({_NAME})(?:\.git)?/?", re.ASCII)

_SET_UP = re.compile(r'^(?P<before>REPOSITORY = ")(?P<address>[^"]*)(?=")', re.MULTILINE)
_BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/{repository}/blob/{branch}/{path})"
)
_ANY_BADGE = r"\[!\[Open in Colab\]\(https://colab\.[^)]*\)\]\(https://colab\.research\.google\.com/github/[^)]*\)"
_TITLE = re.compile(rf"\A(?P<title># [^\n]*\n\n)(?:{_ANY_BADGE}\n\n)?")
_LISTED = re.compile(  # in the README's tables of notebooks
    r"(?m)(?<=\| )(?P<link>\[[^]\n]*\]\((?P<path>(?:notebooks|exercises)/\d\db?_\w+\.ipynb)\))"
    rf"(?: {_ANY_BADGE})?(?= \|)"
)


@dataclass(frozen=True)
class Home:
    """Where a checkout's notebooks say that the course is.

    repository  OWNER/NAME on GitHub
    commit      or tag, which the set-up cell installs
    branch      whose notebooks the badges open
    """

    repository: str
    commit: str
    branch: str = "main"

    def __str__(self) -> str:
        return f"{self.repository}@{self.commit}"


def home_of(address: str | None, root: Path) -> Home:
    """The address that a fork's notebooks should name.

    address  OWNER/NAME, or OWNER/NAME@COMMIT; the git remote `origin` says what is left out
    Raises   CourseError for a name that is none, and where git does not know what is left out
    """
    found = _ADDRESS.fullmatch(address) if address else None
    if address and not found:
        raise CourseError(f"--repo takes OWNER/NAME or OWNER/NAME@COMMIT, such as jane/course, not {address!r}")
    repository = found["repository"] if found else remote(root)
    if repository is None:
        raise CourseError("git has no remote `origin` on GitHub here; name the repository with --repo OWNER/NAME")
    said = found["commit"] if found else None
    commit = said or _git(root, "describe", "--tags", "--exact-match") or _git(root, "rev-parse", "HEAD")
    if not commit:
        raise CourseError(f"git knows no commit here; name the one to install with --repo {repository}@COMMIT")
    return Home(repository, commit, _git(root, "branch", "--show-current") or "main")


def remote(root: Path) -> str | None:
    """OWNER/NAME of the git remote `origin`, where that is on GitHub."""
    found = _REMOTE.fullmatch(_git(root, "remote", "get-url", "origin"))
    return found[1] if found else None


def point_at(home: Home, root: Path) -> list[Path]:
    """Rewrite README.md and all lessons, solutions and exercises of the checkout at root.

    Returns  the files that changed, relative to root; none the second time
    Raises   CourseError for a notebook that cannot be read; then nothing is written
    """
    folders = ("notebooks", "solutions", "exercises")
    notebooks = [path for name in folders for path in sorted((root / name).glob("*.ipynb"))]
    contents = {root / "README.md": _listed((root / "README.md").read_text(), home).encode()}
    contents |= {path: _notebook(path, home) for path in notebooks}
    changed = [path for path, content in contents.items() if content != path.read_bytes()]
    for path in changed:
        write_whole(path, contents[path])
    return [path.relative_to(root) for path in changed]


def named(path: Path) -> str:
    """The OWNER/NAME@COMMIT that a notebook's set-up cell installs, or "". Raises CourseError without such a cell."""
    for cell in read_notebook(path)["cells"]:
        if cell["cell_type"] == "code" and (found := _SET_UP.search(cell["source"])):
            return found["address"]
    raise CourseError(f'{path} has no set-up cell with a line `REPOSITORY = ""`; take a fresh copy')


def _notebook(path: Path, home: Home) -> bytes:
    """The notebook's new content; what is not the badge, the set-up cell or an untouched exercise's digest stays."""
    notebook = read_notebook(path)
    course = notebook.get("metadata", {}).get("course", {})
    untouched = course.get("digest") == digest(notebook["cells"])
    opens = "exercises" if path.parent.name == "solutions" else path.parent.name
    badge = _BADGE.format(repository=home.repository, branch=home.branch, path=f"{opens}/{path.name}")
    title, *others = notebook["cells"]
    title["source"] = _TITLE.sub(lambda found: f"{found['title']}{badge}\n\n", title["source"])
    for cell in others:
        if cell["cell_type"] == "code" and _SET_UP.search(cell["source"]):
            cell["source"] = _SET_UP.sub(lambda found: found["before"] + str(home), cell["source"], count=1)
            break
    if untouched and "digest" in course:
        course["digest"] = digest(notebook["cells"])
    return as_bytes(notebook)


def _listed(readme: str, home: Home) -> str:
    def with_badge(found: re.Match) -> str:
        badge = _BADGE.format(repository=home.repository, branch=home.branch, path=found["path"])
        return f"{found['link']} {badge}"

    return _LISTED.sub(with_badge, readme)


def _git(root: Path, *arguments: str) -> str:
    """What git says, in one line; "" where it cannot or is not there."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
