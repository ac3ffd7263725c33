"""A pool of warmed sandboxes, and the submissions that pass through them. One thread; Linux.

A sandbox pays TensorFlow's import once. One that fails is replaced, and its submission is graded again.
"""

import selectors
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from course_lib.errors import CourseError
from course_lib.lessons import LESSONS
from course_lib.staff.grade.results import Result
from course_lib.staff.grade.sandbox_process import Box, BoxFailed, Told

TRIES = 2  # of one run in a sandbox that fails

Grading = Generator[dict, Told, Result]


@dataclass
class _Desk:
    """One place in the classroom: its sandbox, and the submission that sits there."""

    box: Box | None = None
    number: int | None = None
    grading: Grading | None = None
    job: dict | None = None
    failures: int = 0


def backend_of(exercise: str | None) -> str:
    """Keras' backend for an exercise, which its set-up cell picks too."""
    return LESSONS[exercise].framework if exercise else "tensorflow"


def grade_all(work: Iterable[tuple[str, Grading]], desks: int, enclosed: bool = True) -> Iterator[tuple[int, Result]]:
    """Run gradings, as many at a time as there are desks.

    work      the backend and the grading of each submission; those of one backend in a row
    enclosed  False runs learner code as this user
    Yields    each submission's number in `work`, and its result, as it is done
    Raises    CourseError when a sandbox fails again and again; every sandbox ends with the generator
    """
    waiting, room = deque(enumerate(work)), [_Desk() for _ in range(desks)]
    try:
        while True:
            for desk in room:
                while desk.grading is None and waiting:
                    yield from _seat(desk, *waiting.popleft(), enclosed)
            busy = [desk for desk in room if desk.grading]
            if not busy:
                return
            for desk in _ready(busy):
                yield from _serve(desk, enclosed)
    finally:
        for desk in room:
            if desk.box:
                desk.box.close()


def _seat(desk: _Desk, number: int, work: tuple[str, Grading], enclosed: bool) -> Iterator[tuple[int, Result]]:
    backend, desk.grading = work
    desk.number = number
    if desk.box and desk.box.backend != backend:
        desk.box.close()
        desk.box = None
    yield from _go_on(desk, None, backend, enclosed)


def _go_on(desk: _Desk, told: Told | None, backend: str, enclosed: bool) -> Iterator[tuple[int, Result]]:
    """Give the grading what its last job told; start its next one, or yield its result and free the desk."""
    try:
        desk.job = desk.grading.send(told)
    except StopIteration as done:
        desk.grading = None
        yield desk.number, done.value
        return
    desk.failures = 0
    _start(desk, backend, enclosed)


def _start(desk: _Desk, backend: str, enclosed: bool) -> None:
    desk.box = desk.box or Box(backend, enclosed)
    desk.box.start(desk.job)


def _serve(desk: _Desk, enclosed: bool) -> Iterator[tuple[int, Result]]:
    backend = desk.box.backend
    try:
        if desk.box.take():
            yield from _go_on(desk, desk.box.told, backend, enclosed)
    except BoxFailed as failed:
        desk.box.close()
        desk.box, desk.failures = None, desk.failures + 1
        if desk.failures == TRIES:
            raise CourseError(f"the sandbox failed {TRIES} times in a row: {failed}") from None
        _start(desk, backend, enclosed)


def _ready(busy: list[_Desk]) -> list[_Desk]:
    """The desks whose box has something to tell or has been silent for too long."""
    with selectors.DefaultSelector() as waiting:
        for desk in busy:
            waiting.register(desk.box, selectors.EVENT_READ, desk)
        told = [key.data for key, _ in waiting.select(min(desk.box.left_seconds for desk in busy))]
    return told or [desk for desk in busy if desk.box.left_seconds == 0]
