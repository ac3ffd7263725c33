"""Every exercise's questions by the exercise's name, loaded when asked for.

exNN.py holds an exercise's targets and exNN_mistakes.toml its known mistakes; its probes live apart in
exercises/probes, so that a sandbox can hold the probes and no reference.
"""

import importlib

from course_lib.errors import CourseError
from course_lib.exercises.question import Question
from course_lib.lessons import LESSONS

MODULES = {lesson.name: lesson.exercise for lesson in LESSONS.values()}


def questions(exercise: str) -> tuple[Question, ...]:
    """The exercise's questions in order. Raises CourseError for an unknown name."""
    if exercise not in MODULES:
        raise CourseError(f"no exercise is called {exercise!r}; the exercises are {', '.join(MODULES)}")
    return importlib.import_module(f"{__name__}.{MODULES[exercise]}").QUESTIONS
