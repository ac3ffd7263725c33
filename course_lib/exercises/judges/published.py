"""The published answers, and what a known mistake makes of one. Standard library only.

`course new-exercises` writes published.json from solutions/, so that an answer is written once and the judges
need no notebooks beside the package.
"""

import functools
import json
import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("published.json")


@dataclass(frozen=True)
class Answer:
    """The source of one answer.

    before  the imports and the answers above it, which it may use
    """

    before: str
    source: str

    def names(self, edit: Mapping[str, str] = {}) -> dict[str, object]:
        """The names that a notebook defines with this answer, edited.

        edit    texts that stand once in the answer, each with its replacement; applied in order
        Raises  ValueError for a text that does not stand there once
        """
        source, names = edited(self.source, edit), {"__name__": "__main__"}  # as in a notebook
        for part in (self.before, source):
            file = f"<answer {hash(part):x}>"
            # A worker program travels as its source, which Python looks up here, as IPython lets it.
            linecache.cache[file] = (len(part), None, part.splitlines(keepends=True), file)
            exec(compile(part, file, "exec"), names)
        return names


def answers(exercise: str) -> dict[str, Answer]:
    """Question to published answer, such as {"q1": ...}."""
    imports, *sources = _stored()[exercise].values()
    names = list(_stored()[exercise])[1:]
    return {name: Answer("\n\n".join([imports, *sources[:place]]), sources[place]) for place, name in enumerate(names)}


def edited(source: str, edit: Mapping[str, str]) -> str:
    """The source with each text replaced. Raises ValueError for a text that does not stand there once."""
    for text, replacement in edit.items():
        if source.count(text) != 1:
            raise ValueError(f"{text!r} stands {source.count(text)} times in the published answer, not once")
        source = source.replace(text, replacement)
    return source


@functools.cache
def _stored() -> dict[str, dict[str, str]]:
    return json.loads(FILE.read_text(encoding="utf-8"))
