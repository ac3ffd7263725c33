"""One self-contained notebook for Colab: the lesson, with the course's package inside. Needs pip, and its index.

For people with no repository at hand. A cell before the set-up cell holds the
package's wheel; it checks the wheel's SHA-256 and installs it with nothing else
fetched or replaced. Links into the repository become addresses, and its
pictures become part of the notebook.
"""

import base64
import hashlib
import mimetypes
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.notebook_cells import read_notebook
from course_lib.staff.fork_badges import home
from course_lib.staff.new_exercises import as_bytes

CELL_ID = "course-package"

# Run where this package is not: the standard library and pip are all that it has.
CARRIER = """\
# @title The course's package travels in this notebook. Run this cell first.
import base64, hashlib, importlib.util, pathlib, subprocess, sys, tempfile

class PackageError(Exception):
    def _render_traceback_(self):  # one line instead of a traceback
        return ["PackageError: %s" % self]

if importlib.util.find_spec("course_lib") is None:
    NAME, SHA256 = {name!r}, {sha256!r}
    WHEEL = {wheel!r}
    try:
        content = base64.b64decode(WHEEL)
    except ValueError:
        content = b""
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise PackageError("the package in this cell is damaged (SHA-256 differs): take a fresh copy of the notebook")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, NAME)
        path.write_bytes(content)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-index", "--no-deps"]
        done = subprocess.run([*pip, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise PackageError("pip could not install %s: %s" % (NAME, (done.stdout.strip().splitlines() or [""])[-1]))
    importlib.invalidate_caches()
    print("installed", NAME)
"""

# Of a link or a picture in Markdown: [text](target) or ![text](target). Addresses and anchors are left alone.
_LINK = re.compile(r"(?P<picture>!\[[^\]]*)?\]\((?P<target>[^()\s#:]+)(?=[)\s#])")


def write(notebook_path: Path, out: Path, root: Path) -> Path:
    """Write a self-contained copy of a notebook of the checkout at root.

    out     the file to write; an earlier one is replaced
    Returns out
    Raises  CourseError for a file that is not a notebook of the course, carries the
            package already, or lies outside the checkout, where its links lead
            nowhere; and where pip cannot build the package
    """
    notebook, folder = read_notebook(notebook_path), notebook_path.resolve().parent
    if not folder.is_relative_to(root):
        raise CourseError(f"{notebook_path} is not in the course's folder {root}, where its links lead; move it there")
    if out.resolve() == notebook_path.resolve():
        raise CourseError(f"--out names the notebook itself, {notebook_path}; name another file")
    if out.is_dir():
        raise CourseError(f"--out names a folder, {out}; name a file, such as {out / 'copy.ipynb'}")
    repository, branch = home(notebook_path)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = _standing_alone(cell["source"], folder, root, f"https://github.com/{repository}", branch)
    place = _set_up_place(notebook["cells"], notebook_path)
    notebook["cells"].insert(place, _carrier(*_wheel(root)))
    try:
        fresh = out.with_name(out.name + ".new")
        fresh.write_bytes(as_bytes(notebook))
        os.replace(fresh, out)
    except OSError as error:
        raise CourseError(f"{out} cannot be written ({error.strerror}); name another file with --out") from None
    return out


def _set_up_place(cells: list[dict], path: Path) -> int:
    if any(cell.get("id") == CELL_ID for cell in cells):
        raise CourseError(f"{path} carries the package already; start from the lesson or exercise itself")
    for place, cell in enumerate(cells):
        if cell["cell_type"] == "code" and re.search(r"^\s*import course_lib\b", cell["source"], re.MULTILINE):
            return place
    raise CourseError(f"{path} has no set-up cell with `import course_lib`, so it needs no package; take a fresh copy")


def _wheel(root: Path) -> tuple[str, bytes]:
    """The file name and the content of this package's wheel. The same checkout gives the same bytes each time."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
        command = [*pip, "--wheel-dir", folder, root]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        if done.returncode:
            # What pip says after the output of a step that failed is the same for every cause.
            cause = (done.stdout.partition("[end of output]")[0].strip().splitlines() or ["no output"])[-1].strip()
            raise CourseError(
                f"pip could not build the course's wheel ({cause}); it fetches hatchling for that, so connect to the "
                "network, or name your mirror in PIP_INDEX_URL"
            )
        (path,) = Path(folder).glob("*.whl")
        return path.name, path.read_bytes()


def _carrier(name: str, content: bytes) -> dict:
    """The cell that installs a wheel; shown folded in Colab and in JupyterLab."""
    text, sha256 = base64.b64encode(content).decode(), hashlib.sha256(content).hexdigest()
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": CELL_ID,
        "metadata": {"cellView": "form", "jupyter": {"source_hidden": True}},
        "outputs": [],
        "source": CARRIER.format(name=name, sha256=sha256, wheel=text),
    }


def _standing_alone(prose: str, folder: Path, root: Path, address: str, branch: str) -> str:
    """Markdown whose links to files of the repository lead to GitHub, and whose pictures are inside."""

    def found(match: re.Match) -> str:
        path = (folder / match["target"]).resolve()
        if not (path.exists() and path.is_relative_to(root)):  # brackets in code, or another site
            return match[0]
        if match["picture"]:
            content = base64.b64encode(path.read_bytes()).decode()
            return f"{match['picture']}](data:{mimetypes.guess_type(path.name)[0]};base64,{content}"
        kind = "tree" if path.is_dir() else "blob"
        return f"]({address}/{kind}/{branch}/{path.relative_to(root).as_posix()}"

    return _LINK.sub(found, prose)
