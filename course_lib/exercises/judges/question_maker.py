"""Makes an exercise's questions: what its module says, with the published answer and the known mistakes on file.

Known mistakes lie in exNN_mistakes.toml, so that whoever meets a new one adds it without Python. What recognises one
by more than its edit is a function of exNN.py, under the mistake's name.
"""

import functools
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from course_lib.exercises.judges import forms, published
from course_lib.exercises.question import Mistake, Question


def of(exercise: str) -> Callable[..., Question]:
    """A function that makes questions of an exercise such as "06_model_parallelism".

    It takes a Question's fields but `answer` and `mistakes`, and
    form              of the answers that targets and recognisers are given; see forms
    recognise, wrong  by a mistake's name, what the file cannot hold; see Mistake
    """

    def question(name: str, form: object, recognise=None, wrong=None, **fields) -> Question:
        answer, mistakes = published.Answer(exercise, name), _mistakes(exercise, name, recognise or {}, wrong or {})
        return forms.formed(Question(name=name, answer=answer, mistakes=mistakes, **fields), form)

    return question


def _mistakes(exercise: str, question: str, recognise: Mapping, wrong: Mapping) -> tuple[Mistake, ...]:
    """In the order of the file. Raises ValueError for a name that the file does not have."""
    known = _stored(exercise)[question]
    if unknown := {*recognise, *wrong} - {mistake["name"] for mistake in known}:
        raise ValueError(f"{exercise} {question} has no known mistake called {', '.join(sorted(unknown))}")
    return tuple(
        Mistake(
            **{key: mistake[key] for key in ("name", "what", "where")},
            wrong=wrong.get(mistake["name"]),
            recognise=recognise.get(mistake["name"]),
            edit=dict(mistake["edit"]) if "edit" in mistake else None,
        )
        for mistake in known
    )


@functools.cache
def _stored(exercise: str) -> dict[str, list[dict]]:
    file = Path(__file__).with_name(f"ex{exercise[:2]}_mistakes.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))
