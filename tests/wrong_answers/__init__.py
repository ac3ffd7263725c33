"""Wrong answers that no edit of the published one gives; a judge recognises these mistakes by their answers alone.

One module per exercise, whose WRONG holds, by question and mistake, what stands in for the names that the
question asks for: a function, or a dict of them. Learners' checks never run these, so they lie with the tests.
"""

import importlib.util
from collections.abc import Mapping

from course_lib.exercises import judges


def stand_ins(exercise: str, question, mistake) -> dict[str, object]:
    """The names as a learner with this mistake would define them."""
    known = question.stand_ins(mistake)
    wrong = {} if known else importlib.import_module(module_of(exercise)).WRONG[question.name, mistake.name]
    return known or dict(wrong if isinstance(wrong, Mapping) else {question.asks_for[0]: wrong})


def module_of(exercise: str) -> str:
    return f"wrong_answers.{judges.MODULES[exercise]}"
