"""The `Exercise` that a notebook meets inside the sandbox: its checks are made outside, so it only says so."""

from course_lib.errors import CourseError

CheckFailed = CourseError  # raised by checks in a notebook; never here


class UncheckedExercise:
    """Takes the calls of exercises.check.Exercise and gives no verdict."""

    def __init__(self, name: str, *_: object) -> None:
        self.name = name

    def __call__(self, question_name: str) -> None:
        """Say that the question is checked by whoever grades."""
        print(f"{question_name}: its verdict is on the feedback page")

    def __repr__(self) -> str:
        return f"{self.name}: the verdicts are on the feedback page"


Exercise = UncheckedExercise  # the name that notebooks import
