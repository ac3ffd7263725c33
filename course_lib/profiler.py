"""Record what a program does, and read the record back as plain events.

Recording needs TensorFlow or JAX, reading needs JAX (its reader of the
profiler's xplane.pb format serves both). Taught in notebooks/01.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError

FRAMEWORKS = ("tensorflow", "jax")


@dataclass(frozen=True)
class Event:
    """One interval of work on one thread.

    plane             what the thread belongs to: "/host:CPU", or a device such as "/device:GPU:0"
    thread            the name of the thread or device stream
    start_seconds     since the trace's first event
    duration_seconds  0 for a mark
    """

    name: str
    plane: str
    thread: str
    start_seconds: float
    duration_seconds: float

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.duration_seconds


@contextmanager
def profile(folder: Path | str, framework: str | None = None) -> Iterator[Path]:
    """Record everything that runs inside the `with` into `folder`, where TensorBoard finds it.

    folder     made when missing; TensorBoard's --logdir. Each recording gets its own subfolder.
    framework  "tensorflow" or "jax"; None takes the one that has been imported (TensorFlow first)
    Raises     CourseError when neither has been imported, or a recording already runs
    """
    framework = framework or next((name for name in FRAMEWORKS if name in sys.modules), None)
    if framework not in FRAMEWORKS:
        raise CourseError("profile() records TensorFlow or JAX, and neither has been imported: import it first.")
    start, stop = _recorder(framework)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        start(str(folder))
    except Exception as error:  # AlreadyExistsError or RuntimeError, by framework
        raise CourseError(f"Another recording runs already; one process records one at a time ({error}).") from None
    try:
        yield folder
    finally:
        stop()


def read_trace(folder: Path | str) -> tuple[Event, ...]:
    """The events of the newest recording under `folder`, by start time.

    Raises CourseError when there is no recording, or JAX is not installed
    """
    recordings = sorted(Path(folder).rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime_ns)
    if not recordings:
        raise CourseError(
            f"There is no recording (*.xplane.pb) under {folder}: record one with `with profile(folder):`."
        )
    try:
        from jax.profiler import ProfileData
    except ImportError:
        raise CourseError(
            "Reading a recording needs JAX 0.7 or newer, for TensorFlow's recordings too: `pip install jax`."
        ) from None
    planes = ProfileData.from_file(str(recordings[-1])).planes
    raw = [
        (e.start_ns, e.duration_ns, e.name, plane.name, line.name)
        for plane in planes
        for line in plane.lines
        for e in line.events
    ]
    raw.sort()
    first_ns = raw[0][0] if raw else 0
    return tuple(
        Event(name, plane, thread, (start_ns - first_ns) / 1e9, duration_ns / 1e9)
        for start_ns, duration_ns, name, plane, thread in raw
    )


def covered_seconds(events) -> float:
    """Seconds in which at least one of the events runs: overlapping events count once.

    The sum of durations would count nested events and parallel threads twice.
    """
    total = reached = 0.0
    for event in sorted(events, key=lambda event: event.start_seconds):
        total += max(0.0, event.end_seconds - max(event.start_seconds, reached))
        reached = max(reached, event.end_seconds)
    return total


def _recorder(framework: str):
    if framework == "jax":
        from jax import profiler

        return profiler.start_trace, profiler.stop_trace
    from tensorflow import profiler

    return profiler.experimental.start, profiler.experimental.stop
