"""Plain programs to take away: one file per way of scaling, which imports nothing of this course.

`course program NAME > train.py` writes one. Each is whole, so what two of them need stands in both. Standard library
only.
"""

from pathlib import Path

from course_lib.errors import CourseError

FOLDER = Path(__file__).parent
NAMES = (
    "mirrored-fit",
    "mirrored-loop",
    "multi-worker-fit",
    "multi-worker-loop",
    "parameter-server",
    "accumulation",
    "mixed-precision",
    "tpu-strategy",
    "jax-data-parallel",
    "layout-map",
    "pipeline",
)  # in the order of the lessons, fit before a loop


def text(name: str) -> str:
    """A program's whole text.

    Raises  CourseError for a name that is not in NAMES
    """
    if name not in NAMES:
        raise CourseError(f"there is no program {name!r}; there are {', '.join(NAMES)}")
    return (FOLDER / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")


def headline(name: str) -> str:
    """What it does, in one line."""
    return text(name).splitlines()[0].strip('"')
