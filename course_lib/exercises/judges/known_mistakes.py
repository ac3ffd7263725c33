"""The known mistakes of an exercise, read from its file: exNN_mistakes.toml. Standard library only.

The texts and edits are data, so that whoever meets a new mistake adds it without Python. What recognises one by more
than its edit is a function of exNN.py, under the mistake's name.
"""

import functools
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from course_lib.exercises.question import Mistake


def of(
    module: str,
    question: str,
    recognise: Mapping[str, Callable] | None = None,
    wrong: Mapping[str, object] | None = None,
) -> tuple[Mistake, ...]:
    """The mistakes of a question, in the order of the file.

    module     such as "ex06"
    recognise, wrong  by mistake's name, what the file cannot hold; see Mistake
    Raises     ValueError for a name that the file does not have
    """
    recognise, wrong = recognise or {}, wrong or {}
    known = _stored(module)[question]
    if unknown := {*recognise, *wrong} - {mistake["name"] for mistake in known}:
        raise ValueError(f"{module} {question}: no mistake {', '.join(sorted(unknown))} in {module}_mistakes.toml")
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
def _stored(module: str) -> dict[str, list[dict]]:
    return tomllib.loads(Path(__file__).with_name(f"{module}_mistakes.toml").read_text(encoding="utf-8"))
