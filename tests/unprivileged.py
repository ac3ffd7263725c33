"""Start a command as the user nobody, whom `course grade` accepts, where the tests run as root. Needs util-linux.

Python, or pytest's folders, may lie in a folder that only root may enter. The
command then gets its own view of such a folder, which shows what it needs and
nothing else; the folder itself stays as closed as it was.
"""

import atexit
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NOBODY = 65534
CHECKOUT = Path(__file__).resolve().parent.parent


def as_nobody(command: list[str], *reach: str | Path, home: Path | None = None) -> list[str]:
    """The command line that runs a command as nobody, with a home of its own; as it stands unless root.

    reach   folders that the command needs beside Python and the course, its working directory among them;
            nobody must have rights on each, see give_to_nobody
    home    a folder to keep between commands; without it, an empty one that goes when this process ends
    Returns a command line; its process becomes the command's, so that a signal reaches the command itself
    Raises  PermissionError, naming the folder, when nobody may not enter one of them
    """
    if os.geteuid() != 0:
        return list(command)
    home = home or _own_folder() / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    give_to_nobody(home)
    switch = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", f"HOME={home}", *command]
    return in_view(switch, home, *reach)


def in_view(command: list[str], *reach: str | Path) -> list[str]:
    """The command line that runs a command, still as root, where nobody can reach what as_nobody speaks of."""
    needed, stage = _needed(*reach), _own_folder() / "stage"
    stage.mkdir()
    views = [line for folder in _closed(needed) for line in _view(folder, needed, stage)]
    if not views:
        return command
    script = "\n".join(["set -e", *views, 'cd "$PWD"', 'exec "$@"'])
    return ["unshare", "--mount", "sh", "-c", script, "sh", *command]


def _own_folder() -> Path:
    """A new one that nobody may enter, and that goes when this process ends."""
    own = Path(tempfile.mkdtemp(prefix="nobody-"))
    own.chmod(0o755)
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def give_to_nobody(path: Path) -> Path:
    """Make nobody the owner of a file, or of a folder and all in it; leave it unless root. Returns the path."""
    if os.geteuid() == 0:
        for inside in [path, *path.rglob("*")]:
            os.chown(inside, NOBODY, NOBODY, follow_symlinks=False)
    return path


def _needed(*reach: str | Path) -> list[Path]:
    """Every folder under the name it is called by and under its real one."""
    python = Path(sys._base_executable).parent.parent
    _open_checkout()
    called = [Path(path).absolute() for path in (sys.prefix, sys.base_prefix, python, CHECKOUT, *reach)]
    folders = sorted({*called, *(path.resolve() for path in called)})
    for folder in folders:
        if not folder.is_dir() or not _open(folder):
            raise PermissionError(f"nobody may not enter {folder}: give_to_nobody(it), or chmod o+x")
    return folders


@functools.cache
def _open_checkout() -> None:
    """Let everybody read the checkout and its environment, where a clone under a strict umask does not."""
    for folder, sample in ((CHECKOUT, "course_lib/__init__.py"), (Path(sys.prefix), "pyvenv.cfg")):
        if not (folder.stat().st_mode & 0o001 and (folder / sample).stat().st_mode & 0o004):
            subprocess.run(["chmod", "--recursive", "o+rX", folder], check=True)


def _closed(needed: list[Path]) -> list[Path]:
    """The outermost folders on the way to the needed ones that nobody may not enter."""
    ways = [reversed(folder.parents) for folder in needed]
    return sorted({next((step for step in way if not _open(step)), None) for way in ways} - {None})


def _open(folder: Path) -> bool:
    seen = folder.stat()
    return bool(seen.st_mode & 0o001) or seen.st_uid == NOBODY and bool(seen.st_mode & 0o100)


def _view(closed: Path, needed: list[Path], stage: Path) -> list[str]:
    """Shell lines that put an empty folder with the needed ones in it in the closed one's place."""
    lines = [f"mount -t tmpfs -o mode=755 view {shlex.quote(str(stage))}"]
    for folder in (folder for folder in needed if closed in folder.parents):
        source, place = shlex.quote(str(folder)), shlex.quote(str(stage / folder.relative_to(closed)))
        # A folder inside another needed one is there already.
        lines.append(f"[ -e {place} ] || {{ (umask 022; mkdir -p {place}); mount --rbind {source} {place}; }}")
    return [*lines, f"mount --move {shlex.quote(str(stage))} {shlex.quote(str(closed))}"]
