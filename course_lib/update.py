"""A newer version of the course for a clone, with nothing lost that its learner wrote. Needs git.

`git pull` stops at a notebook that was only run, and merges answers into a file that no longer is a notebook. Here a
file that the learner wrote in is never touched: the new version of a notebook is put beside it.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.notebook_cells import notebook_of

NEW = "new-"  # before the name of a notebook that lies beside the learner's; .gitignore has it


@dataclass(frozen=True)
class NewVersion:
    """What a newer version changed; prints as lines for the learner.

    commits  that the clone was behind
    changed  files that are now the new version's
    kept     notebooks that stay as the learner wrote them, though the new version has others
    """

    commits: int
    changed: tuple[str, ...]
    kept: tuple[str, ...]

    def __str__(self) -> str:
        if not self.commits:
            return "This is the newest version."
        lines = [f"Updated by {self.commits} commit(s), {len(self.changed)} file(s); CHANGELOG.md says what is new."]
        lines += [f"{path} is as you wrote it; the new version is beside it, {_beside(path)}" for path in self.kept]
        return "\n".join([*lines, "Run `make lab` again: it installs what the new version needs."])


def update(root: Path) -> NewVersion:
    """Bring the clone at root to the newest commit of the branch that it follows. The same call again goes on.

    Raises  CourseError, and has changed nothing, for a folder that is no clone or follows no branch, with no
            connection, where the clone has commits of its own, and where the learner has changed a file of the
            new version that is not a notebook, or the one beside it from the last update
    """
    if _git(root, "rev-parse", "--show-toplevel", missing=b"").strip() != str(root.resolve()).encode():
        raise CourseError(
            f"{root} is not a git clone: unpack the new version beside it, and copy your notebooks and "
            "exercises/.progress.jsonl there"
        )
    if not _git(root, "rev-parse", "--verify", "--quiet", "@{upstream}", missing=b""):
        raise CourseError(
            "this branch follows none of a remote, where a newer version would be; in a clone, `git switch main`"
        )
    _git(root, "fetch", "--quiet")
    if _git(root, "rev-list", "@{upstream}..HEAD"):
        raise CourseError("this clone has commits of its own: `git merge @{upstream}` brings the new version into them")
    commits = len(_git(root, "rev-list", "HEAD..@{upstream}").split())
    listed = _git(root, "diff", "--name-only", "--no-renames", "-z", "HEAD", "@{upstream}")
    paths = [path.decode() for path in listed.split(b"\0") if path]
    wrote_in = [path for path in paths if _is_learners(root, path)]
    others = [path for path in wrote_in if not path.endswith(".ipynb")]
    if others:
        raise CourseError(
            f"you have changed {', '.join(others)}, and so does the new version: `git commit` your change, "
            "then `git merge @{upstream}`"
        )
    changed, there = [path for path in paths if path not in wrote_in], _there(root)
    kept = [path for path in wrote_in if path in there]
    answered = [_beside(path) for path in kept if _is_learners(root, path, _beside(path))]
    if answered:
        raise CourseError(f"you wrote in {', '.join(answered)}, where a newer version would go: give it another name")
    for path in kept:
        (root / _beside(path)).write_bytes(_blob(root, "@{upstream}", path))
    taken = "\0".join(path for path in changed if path in there)
    if taken:
        _git(root, "checkout", "@{upstream}", "--pathspec-from-file=-", "--pathspec-file-nul", sent=taken.encode())
    for path in changed:
        if path not in there:
            (root / path).unlink(missing_ok=True)
    _git(root, "reset", "--quiet", "@{upstream}")  # the branch and git's index, and no file
    return NewVersion(commits, tuple(changed), tuple(kept))


def _there(root: Path) -> set[str]:
    """The files of the new version."""
    return {path.decode() for path in _git(root, "ls-tree", "-r", "-z", "--name-only", "@{upstream}").split(b"\0")}


def _is_learners(root: Path, path: str, place: str | None = None) -> bool:
    """Whether a file, at its own path or at another place, holds what neither version has: edited, and not only run."""
    file = root / (place or path)
    if not file.is_file():
        return False
    content = file.read_bytes()
    versions = [_blob(root, "HEAD", path), _blob(root, "@{upstream}", path)]
    if content in versions:
        return False
    return not path.endswith(".ipynb") or _sources(content) not in [_sources(one) for one in versions if one]


def _sources(content: bytes):
    try:
        return [(cell["cell_type"], cell["source"]) for cell in notebook_of(content, "")["cells"]]
    except CourseError:
        return content  # what cannot be read is kept too


def _beside(path: str) -> str:
    return str(Path(path).with_name(NEW + Path(path).name))


def _blob(root: Path, version: str, path: str) -> bytes | None:
    return _git(root, "show", f"{version}:./{path}", missing=None)


_RAISE = object()


def _git(root: Path, *arguments: str, sent: bytes | None = None, missing=_RAISE) -> bytes:
    """What git prints; `missing` where it cannot, else a CourseError with git's own line."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, input=sent, capture_output=True)
    except FileNotFoundError:
        raise CourseError("git is not installed; install it (Debian and Ubuntu: sudo apt install git)") from None
    if done.returncode == 0:
        return done.stdout
    if missing is not _RAISE:
        return missing
    said = done.stderr.decode(errors="replace").splitlines()
    reason = next((line for line in said if line.startswith(("fatal:", "error:"))), "no reason given")
    raise CourseError(f"git {arguments[0]} failed ({reason}); nothing that you wrote was changed")
