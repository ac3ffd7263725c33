"""`check("q1")`: probe, judge, record and show, in one line of a notebook.

Needs IPython only where there is a notebook.
"""

import contextlib
import dataclasses
import logging
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises import journal, judges
from course_lib.exercises.ask import ask
from course_lib.exercises.judge import judge
from course_lib.exercises.question import Question
from course_lib.exercises.verdict import Verdict

QUICK_SECONDS, LONG_SECONDS = 60.0, 540.0  # a check's limit: many times what a right answer takes on two cores
VERDICT_MIME = "application/vnd.course.verdict+json"


class CheckFailed(CourseError):
    """An answer is not right yet; raised so that an automatic run fails."""


class Exercise:
    """The checks of one exercise, called with a question's name.

    name       the exercise's, as in its file's name: "00_start_here"
    questions  the bank's, unless given
    file       where progress is appended; beside the notebook, unless given;
               None keeps it in memory alone
    Raises     CourseError for a name that is not an exercise
    """

    def __init__(
        self, name: str, questions: tuple[Question, ...] | None = None, file: Path | None = Path(journal.FILE)
    ) -> None:
        self.name = name
        self._questions = {question.name: question for question in questions or judges.questions(name)}
        self._file = file
        self._checks = journal.events(file) if file else []

    def __call__(self, question_name: str) -> None:
        """Check one question on fresh inputs and show the verdict.

        Raises  CheckFailed when the answer is not right, has not ended in time, or is interrupted;
                CourseError when the exercise has no such question
        """
        if question_name not in self._questions:
            raise CourseError(f"{self.name} has no question {question_name!r}; it has {', '.join(self._questions)}")
        question, seed = self._questions[question_name], secrets.randbits(32)
        names, seconds = _namespace(sys._getframe(1)), LONG_SECONDS if question.takes_long else QUICK_SECONDS
        try:
            with _no_word_of_retracing():
                answers = ask(question.probe, question.asks_for, names, seed, seconds=seconds)
                verdict = self._with_due_hints(judge(question, answers, seed))
        except KeyboardInterrupt:
            raise CheckFailed(f"{question_name} was interrupted; this check is not counted") from None
        if not verdict.is_blank:
            self._record(verdict, seed)
        _show(verdict)
        if not verdict.right:
            raise CheckFailed(verdict.summary)

    def __repr__(self) -> str:
        right = journal.right_questions(self.name, self._checks)
        points = sum(question.points for name, question in self._questions.items() if name in right)
        of = sum(question.points for question in self._questions.values())
        lines = [
            f"  {name} {'right' if name in right else 'open '}  {question.title}"
            for name, question in self._questions.items()
        ]
        return "\n".join([f"{self.name}: {points} of {of} {'point' if of == 1 else 'points'}", *lines])

    def _with_due_hints(self, verdict: Verdict) -> Verdict:
        """The second hint is due once the same mistake was made before."""
        if verdict.mistake is None:
            return verdict
        before = any(
            (check["exercise"], check["question"], check.get("mistake"))
            == (self.name, verdict.question, verdict.mistake)
            for check in self._checks
        )
        return dataclasses.replace(verdict, hints=verdict.hints[: 1 + before])

    def _record(self, verdict: Verdict, seed: int) -> None:
        self._checks.append(
            {"exercise": self.name, "question": verdict.question, "right": verdict.right, "mistake": verdict.mistake}
        )
        if self._file is None:
            return
        try:
            journal.record(self._file, self.name, verdict, seed)
        except OSError as error:
            print(
                f"The check counts, but {self._file} could not be written ({error.strerror or error}); "
                "make the notebook's folder writable to keep your progress."
            )


@contextlib.contextmanager
def _no_word_of_retracing() -> Iterator[None]:
    """A check calls functions with new shapes on purpose, and TensorFlow would warn the learner of it."""

    def passes(record: logging.LogRecord) -> bool:
        return "retracing" not in record.getMessage()

    logger = logging.getLogger("tensorflow")
    logger.addFilter(passes)
    try:
        yield
    finally:
        logger.removeFilter(passes)


def _namespace(caller) -> Mapping[str, object]:
    """The notebook's names, or those of the module that calls the check."""
    shell = _shell()
    return shell.user_ns if shell else caller.f_globals


def _shell():
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def _show(verdict: Verdict) -> None:
    if _shell() is None:
        print(verdict)
        return
    from IPython.display import display

    bundle = {VERDICT_MIME: verdict.as_dict(), "text/plain": verdict.message, "text/html": verdict._repr_html_()}
    display(bundle, raw=True)
