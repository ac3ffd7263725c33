"""The wall around learner code: the command line of bubblewrap, and who may not grade at all. Linux.

Inside there is a read-only system with Python and the course, a private loopback, no home, no environment, no other
file of this machine. The bank of targets and references is not there, nor is the rest of the grader.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.staff.grade.sandbox_side.namespaces import SCRATCH

PACKAGE = Path(__file__).resolve().parents[2]
HIDDEN = ("exercises/judges", "staff")  # answers, and the judge's side
SYSTEM_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SYSTEM_FILES = (
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/ssl",
    "/etc/mime.types",
)
CPU_FACTS = "/sys/devices/system/cpu"  # the TPU compiler counts cores there
ENVIRONMENT = {
    "HOME": SCRATCH,
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the order of a set is the same in every grading
    "PYTHONDONTWRITEBYTECODE": "1",
    "MPLBACKEND": "Agg",
    "IPYTHONDIR": f"{SCRATCH}/.ipython",
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's own threads would not live through a fork
    "PIP_NO_INDEX": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "GRPC_VERBOSITY": "ERROR",
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
}
REMEDY = "`apt-get install bubblewrap` (Debian, Ubuntu), `dnf install bubblewrap` (Fedora)"
TRIED = "from course_lib.staff.grade.sandbox_side import namespaces; namespaces.try_out()"
# The kernel's settings that can keep user namespaces from ordinary users, and the values that do not: Ubuntu's since
# 23.10 (ubuntu.com/blog/ubuntu-23-10-restricted-unprivileged-user-namespaces), Debian's own, user_namespaces(7).
ALLOWING = {
    "kernel/apparmor_restrict_unprivileged_userns": range(1),
    "kernel/unprivileged_userns_clone": range(1, 2),
    "user/max_user_namespaces": range(1000, 2**31),
}


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
    tried = subprocess.run(
        [*_walls(), sys.executable, "-P", "-c", TRIED], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if tried.returncode:
        said = (tried.stderr.strip().splitlines() or ["no message"])[-1]
        raise CourseError(f"bubblewrap cannot make a sandbox here ({said}): {_what_would_allow_it()}")


def _what_would_allow_it() -> str:
    for name, allowing in ALLOWING.items():
        with contextlib.suppress(OSError):  # most kernels have some of them
            if int(Path("/proc/sys", name).read_text()) not in allowing:
                return (
                    f"`sudo sysctl -w {name.replace('/', '.')}={allowing[0]}` lets ordinary users make user namespaces"
                )
    return "ordinary users must be allowed to make user namespaces, and more within them; a container's own rules may forbid it"


def command(backend: str, enclosed: bool) -> list[str]:
    """The warmed process of grade.inside, behind the wall or, not enclosed, in front of it.

    backend  Keras' and the course's: "tensorflow" or "jax"
    """
    program = [
        sys.executable,
        "-P",
        "-m",
        "course_lib.staff.grade.sandbox_side",
        backend,
        "enclosed" if enclosed else "open",
    ]
    return [*_walls(backend), *program] if enclosed else program


def environment(backend: str) -> dict[str, str]:
    """What the warmed process reads of its surroundings; the examiner's own variables stay out."""
    found = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(PACKAGE.parent),
        "KERAS_BACKEND": backend,
    }
    return {**ENVIRONMENT, **found}


def _walls(backend: str = "tensorflow") -> list[str]:
    words = "bwrap --unshare-all --die-with-parent --new-session --cap-drop ALL --clearenv --hostname sandbox".split()
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", SCRATCH, "--dir", "/etc"]
    for name in SYSTEM_LINKS:
        if (link := Path("/", name)).is_symlink():
            words += ["--symlink", os.readlink(link), str(link)]
        elif link.is_dir():
            words += ["--ro-bind", str(link), str(link)]
    for path in ("/usr", *SYSTEM_FILES, CPU_FACTS):
        words += ["--ro-bind-try", path, path]
    for path in _python_folders():
        words += ["--ro-bind", path, path]
    words += ["--ro-bind", str(PACKAGE), str(PACKAGE)]
    for name in HIDDEN:
        words += ["--tmpfs", str(PACKAGE / name)]
    for name in ("staff/__init__.py", "staff/grade/__init__.py", "staff/grade/sandbox_side"):
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
