"""Every exercise's questions by the exercise's name, loaded when asked for.

One module per exercise holds its targets and mistakes; its probes live apart in
exercises/probes, so that a sandbox can hold the probes and no reference.
"""

import importlib

from course_lib.errors import CourseError
from course_lib.exercises.question import Question

MODULES = {
    "00_start_here": "ex00",
    "01_one_device": "ex01",
    "02_data_parallelism": "ex02",
    "03_multi_worker": "ex03",
    "04_parameter_server": "ex04",
    "05_tpu": "ex05",
    "06_model_parallelism": "ex06",
    "07_tensor_parallelism_and_sharding": "ex07",
    "08_gradient_accumulation": "ex08",
    "09_mixed_precision": "ex09",
    "10_choosing_a_strategy": "ex10",
    "11_capstone": "ex11",
}


def questions(exercise: str) -> tuple[Question, ...]:
    """The exercise's questions in order. Raises CourseError for an unknown name."""
    if exercise not in MODULES:
        raise CourseError(f"there is no exercise {exercise!r}; the exercises are {', '.join(MODULES)}")
    return importlib.import_module(f"{__name__}.{MODULES[exercise]}").QUESTIONS
