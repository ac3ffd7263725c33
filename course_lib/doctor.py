"""What this machine has, and what each lesson will do on it. Standard library only, and starts no framework.

Used by `course doctor`; notebooks/00 shows the same machine.
"""

import importlib.metadata
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib import devices
from course_lib.lessons import Lesson

GIB = 2**30
PROFILE_VIEWER = "tensorboard-plugin-profile"
HELP = "TROUBLESHOOTING.md has every message, with its cause and remedy."
SLOW_DISK = "This folder is on Windows' disk, which WSL reads slowly; clone the course into your Linux home folder."
NEEDED_MEMORY_BYTES = 3 * GIB  # no lesson holds more at its peak


@dataclass(frozen=True)
class Outlook:
    """What one lesson will do on this machine.

    backend  the framework and what its replicas run on, in words
    missing  what it needs and does not find; it can run when there is nothing
    remedy   the command that brings what is missing, or ""
    """

    lesson: str
    backend: str
    missing: tuple[str, ...]
    remedy: str

    @property
    def ready(self) -> bool:
        return not self.missing

    def __str__(self) -> str:
        state = "ready" if self.ready else f"missing {', '.join(self.missing)}: {self.remedy}"
        return f"{self.lesson:35} {self.backend:37} {state}"


@dataclass(frozen=True)
class Diagnosis:
    """The machine, its lessons, and advice that no lesson depends on; prints as a report."""

    system: str
    machine: devices.Machine
    free_disk_bytes: int
    lessons: tuple[Outlook, ...]
    advice: tuple[str, ...]

    @property
    def ready(self) -> bool:
        return all(lesson.ready for lesson in self.lessons)

    def as_dict(self) -> dict:
        """Plain values for JSON."""
        lessons = [{**asdict(lesson), "ready": lesson.ready} for lesson in self.lessons]
        return {**asdict(self), "lessons": lessons, "ready": self.ready}

    def __str__(self) -> str:
        system, disk = f"{'system':20} {self.system}", f"{'free disk':20} {self.free_disk_bytes / GIB:.0f} GiB"
        advice = ["", *self.advice] if self.advice else []
        return "\n".join([system, str(self.machine), disk, "", *map(str, self.lessons), *advice, "", HELP])


def diagnose(lessons: Iterable[Lesson], folder: Path) -> Diagnosis:
    """Compare this machine with what some lessons need.

    folder  where the course writes; its disk's free space is reported
    """
    machine, through_wsl = devices.machine(), "microsoft" in platform.release().lower()
    slow_disk = through_wsl and re.match(r"/mnt/[a-z](/|$)", str(folder))  # /mnt/wsl is Linux'
    return Diagnosis(
        system="Windows, through WSL" if through_wsl else f"{platform.system()} {platform.release()}",
        machine=machine,
        free_disk_bytes=shutil.disk_usage(folder).free,
        lessons=tuple(_outlook(lesson, machine) for lesson in lessons),
        advice=((SLOW_DISK,) if slow_disk else ()) + _advice(machine),
    )


def _outlook(lesson: Lesson, machine: devices.Machine) -> Outlook:
    packages = [name for name in (lesson.framework, *lesson.packages) if not _is_installed(name, machine)]
    missing, remedies = list(packages), []
    if packages:
        remedies.append(_install(*packages))
    if machine.memory_bytes is not None and machine.memory_bytes < NEEDED_MEMORY_BYTES:
        missing.append(f"memory (has {machine.memory_bytes / GIB:.1f} of {NEEDED_MEMORY_BYTES / GIB:.0f} GiB)")
        remedies.append("open it in Colab, see README.md")
    return Outlook(lesson.name, _backend(lesson, machine), tuple(missing), "; ".join(remedies))


def _backend(lesson: Lesson, machine: devices.Machine) -> str:
    framework, count = devices.FRAMEWORK_NAMES[lesson.framework], lesson.devices
    if lesson.framework == "jax" and machine.tpu:
        return f"{framework} on {machine.tpu}, or {count} simulated CPU devices"
    gpus = 0 if lesson.framework == "tensorflow" and _has("tensorflow-cpu") else len(machine.gpus)
    if gpus >= count:
        return f"{framework} on {count} {'GPUs' if count > 1 else 'GPU'}"
    return f"{framework} on {count} simulated CPU devices" if count > 1 else f"{framework} on the CPU"


def _advice(machine: devices.Machine) -> tuple[str, ...]:
    advice = []
    if machine.gpus and _has("tensorflow-cpu"):
        swap = f"{sys.executable} -m pip uninstall -y tensorflow-cpu && {_install('tensorflow[and-cuda]')}"
        advice.append(f"TensorFlow's CPU build does not use the {len(machine.gpus)} GPU(s) here; to change it: {swap}")
    if not _has(PROFILE_VIEWER):
        advice.append(f"To open lesson 01's profile in TensorBoard: {_install(PROFILE_VIEWER)}")
    return tuple(advice)


def _install(*packages: str) -> str:
    return " ".join([sys.executable, "-m", "pip", "install", *(shlex.quote(package) for package in packages)])


def _is_installed(package: str, machine: devices.Machine) -> bool:
    return machine.versions[package] is not None if package in machine.versions else _has(package)


def _has(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
