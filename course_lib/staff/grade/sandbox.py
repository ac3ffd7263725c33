"""A warmed sandbox for learner code: bubblewrap's command line, one run in it, and who may not grade at all. Linux.

Inside there is a read-only system with Python and the course, a private loopback, no home, no environment, no other
file of this machine. The targets and references are not there, nor is the rest of the grader. What comes back is
bounded in size and time, and is treated as hostile.
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.staff.grade.sandbox_side import SCRATCH
from course_lib.staff.grade.sandbox_side.channel import LARGEST_RECORD, has_form

PACKAGE = Path(__file__).resolve().parents[2]
HIDDEN = ("exercises/judges", "staff")  # the answers, and the judge's side
SHOWN = ("staff/__init__.py", "staff/grade/__init__.py", "staff/grade/sandbox_side")
SYSTEM_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SYSTEM_FILES = [
    *(f"/etc/{name}" for name in "hosts nsswitch.conf ld.so.cache alternatives localtime ssl mime.types".split()),
    "/sys/devices/system/cpu",  # the TPU compiler counts cores there
]
ENVIRONMENT = {
    "HOME": SCRATCH,
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the order of a set is the same in every grading
    "PYTHONDONTWRITEBYTECODE": "1",
    "MPLBACKEND": "Agg",
    "IPYTHONDIR": f"{SCRATCH}/.ipython",
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's own threads would not survive a fork
    "PIP_NO_INDEX": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "GRPC_VERBOSITY": "ERROR",
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
}
REMEDY = "`apt-get install bubblewrap` (Debian, Ubuntu), `dnf install bubblewrap` (Fedora)"
TRIAL = "from course_lib.staff.grade.sandbox_side import namespaces; namespaces.try_out()"
# The kernel's settings that can keep user namespaces from ordinary users, and the values that do not: Ubuntu's since
# 23.10 (ubuntu.com/blog/ubuntu-23-10-restricted-unprivileged-user-namespaces), Debian's own, user_namespaces(7).
ALLOWING = {
    "kernel/apparmor_restrict_unprivileged_userns": range(1),
    "kernel/unprivileged_userns_clone": range(1, 2),
    "user/max_user_namespaces": range(1000, 2**31),
}
WARM_SECONDS = 300  # for the imports, on a busy machine
SLACK_SECONDS = 60  # beyond a job's own limit, which the sandbox keeps itself


@dataclass(frozen=True)
class Limits:
    """What a submission may take.

    cell_seconds  one cell, or one question's probe
    seconds       one run of the notebook
    memory_gib    all its processes together, and each of them
    processes     processes and threads
    scratch_mib   all files that it writes, shared memory included
    file_mib      one file
    """

    cell_seconds: float = 300.0
    seconds: float = 1500.0
    memory_gib: float = 6.0
    processes: int = 4096
    scratch_mib: float = 512.0
    file_mib: float = 256.0


class SandboxFailed(Exception):
    """The sandbox itself ended or fell silent; the next job needs another one."""


@dataclass(frozen=True)
class SandboxRun:
    """What came back from one run of a submission.

    records  in order, each a dict of the runner's: see sandbox_side.running
    ending   "limit" that was passed or None, "last" that had begun, "output", and how it ended: "exit", "memory",
             "failed"
    """

    records: list[dict] = field(default_factory=list)
    ending: dict = field(default_factory=dict)

    @property
    def stopped_at(self) -> int | str | None:
        """The cell's place, or the question's name, at which the run ended early."""
        last = None if {"end": True} in self.records else self.ending.get("last")
        return last if type(last) in (int, str) else None


class Sandbox:
    """A warmed process for one backend, which runs one submission at a time. Close it.

    backend   "tensorflow" or "jax"
    enclosed  False runs the code as this user, with nothing in between
    is_ready  its imports are done
    """

    def __init__(self, backend: str, enclosed: bool = True) -> None:
        self.backend = backend
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command(backend, enclosed),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(backend),
            start_new_session=True,
            cwd="/",
        )
        self._rest = bytearray()
        self.is_ready = False

    def run(self, job: dict) -> SandboxRun:
        """Run one job, as sandbox_side takes it. Raises SandboxFailed when the sandbox ends or falls silent."""
        deadline = time.monotonic() + job["seconds"] + SLACK_SECONDS + (0 if self.is_ready else WARM_SECONDS)
        with contextlib.suppress(BrokenPipeError):  # it has ended, which the first read says
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        records = []
        while True:
            for line in self._lines(deadline):
                kind, _, text = line.partition(b" ")
                if kind == b"ready":
                    self.is_ready = True
                elif kind == b"R" and (record := _object(text)) is not None:
                    records.append(record)
                elif kind == b"E":
                    ending = _object(text) or {}
                    if failed := ending.get("failed"):
                        raise SandboxFailed(str(failed))
                    return SandboxRun(records, ending)

    def _lines(self, deadline: float) -> list[bytes]:
        """The lines that end in the next piece of output."""
        output = self._process.stdout.fileno()
        ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(output, 2**20) if ready else b""
        if not piece or len(self._rest) > LARGEST_RECORD + 2:
            raise SandboxFailed(self._last_words())
        self._rest += piece
        if b"\n" not in piece:
            return []
        *lines, self._rest = self._rest.split(b"\n")
        return [bytes(line) for line in lines]

    def _last_words(self) -> str:
        """The last line that the sandbox wrote before it ended."""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "it fell silent"

    def kill(self) -> None:
        """End the sandbox and all that is in it; a run in another thread raises SandboxFailed."""
        self._process.kill()

    def close(self) -> None:
        """End the sandbox, when no run is in it, and close its files."""
        self.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                file.close()


def _object(text: bytes) -> dict | None:
    try:
        return json.loads(text) if has_form(text) else None
    except ValueError:  # such as an escape that JSON does not know
        return None


def require(enclosed: bool = True) -> None:
    """Raise a CourseError, in one line, for root, and where bubblewrap is missing or cannot make a sandbox here.

    enclosed  False needs no bubblewrap
    """
    if os.geteuid() == 0:
        raise CourseError(
            "learner code must not run as root, whom limits do not bind: run the same command as an ordinary user "
            "who can read the submissions and write the --out folder"
        )
    if not enclosed:
        return
    if not shutil.which("bwrap"):
        raise CourseError(
            f"bubblewrap, the sandbox, is not installed: {REMEDY}; without it learner code can read and write all "
            "that you can, which --run-submissions-as-me accepts"
        )
    program = [*_bubblewrap(), sys.executable, "-P", "-c", TRIAL]
    trial = subprocess.run(program, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if trial.returncode:
        last_line = (trial.stderr.strip().splitlines() or ["no message"])[-1]
        raise CourseError(f"bubblewrap cannot make a sandbox here ({last_line}): {_what_would_allow_it()}")


def _what_would_allow_it() -> str:
    for name, allowing in ALLOWING.items():
        with contextlib.suppress(OSError):  # most kernels have some of them
            if int(Path("/proc/sys", name).read_text()) not in allowing:
                setting = f"{name.replace('/', '.')}={allowing[0]}"
                return f"`sudo sysctl -w {setting}` lets ordinary users make user namespaces"
    return (
        "ordinary users must be allowed to make user namespaces, and more within them; a container's own rules may "
        "forbid it"
    )


def command(backend: str, enclosed: bool) -> list[str]:
    """The warmed process of sandbox_side, in bubblewrap or, not enclosed, without it.

    backend  Keras' and the course's: "tensorflow" or "jax"
    """
    program = [sys.executable, "-P", "-m", "course_lib.staff.grade.sandbox_side", backend]
    return [*_bubblewrap(backend), *program, "enclosed"] if enclosed else [*program, "open"]


def environment(backend: str) -> dict[str, str]:
    """The warmed process' whole environment; the examiner's own variables stay out."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return {**ENVIRONMENT, "PATH": path, "PYTHONPATH": str(PACKAGE.parent), "KERAS_BACKEND": backend}


def _bubblewrap(backend: str = "tensorflow") -> list[str]:
    words = "bwrap --unshare-all --die-with-parent --new-session --cap-drop ALL --clearenv --hostname sandbox".split()
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", SCRATCH, "--dir", "/etc"]
    words += ["--dev-bind", "/dev/null", "/dev/zero"]  # mapped, it would be memory that nothing counts
    for name in SYSTEM_LINKS:
        if (link := Path("/", name)).is_symlink():
            words += ["--symlink", os.readlink(link), str(link)]
        elif link.is_dir():
            words += ["--ro-bind", str(link), str(link)]
    for path in ("/usr", *SYSTEM_FILES):
        words += ["--ro-bind-try", path, path]
    for path in (*_python_folders(), str(PACKAGE)):
        words += ["--ro-bind", path, path]
    for name in HIDDEN:
        words += ["--tmpfs", str(PACKAGE / name)]
    for name in SHOWN:
        words += ["--ro-bind", str(PACKAGE / name), str(PACKAGE / name)]
    for name in HIDDEN:
        words += ["--remount-ro", str(PACKAGE / name)]
    for name, value in environment(backend).items():
        words += ["--setenv", name, value]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--"]


def _python_folders() -> list[str]:
    """The environment and the Python it was made from, where they are not part of the system."""
    folders = dict.fromkeys(str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix))
    return [folder for folder in folders if not Path(folder).is_relative_to("/usr")]
