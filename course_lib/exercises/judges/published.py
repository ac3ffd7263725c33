"""The published answers, and what a known mistake makes of one. Standard library only.

`course new-exercises` writes published.json from solutions/, so that an answer is written once and the judges
need no notebooks beside the package.
"""

import ast
import functools
import json
import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("published.json")


@dataclass(frozen=True)
class Answer:
    """The published answer to one question; read when it is needed."""

    exercise: str
    question: str

    @property
    def source(self) -> str:
        """The answer cell's source."""
        return _stored()[self.exercise][self.question]

    @property
    def before(self) -> str:
        """The imports and the answers above it, which it may use."""
        parts = _stored()[self.exercise]
        return "\n\n".join(parts[name] for name in list(parts)[: list(parts).index(self.question)])

    def names(self, edit: Mapping[str, str] | None = None) -> dict[str, object]:
        """The names that a notebook defines with this answer, edited.

        edit    texts that stand once in the answer, each with its replacement; applied in order
        Raises  ValueError for a text that does not stand there once
        """
        return self.names_of(edited(self.source, edit or {}))

    def names_of(self, source: str) -> dict[str, object]:
        """The names that a notebook defines with another source in the answer's place."""
        names: dict[str, object] = {"__name__": "__main__"}  # as in a notebook
        for part in (_needed(self.before, source), source):
            file = f"<answer {hash(part):x}>"
            # A worker program travels as its source, which Python looks up here, as IPython lets it.
            linecache.cache[file] = (len(part), None, part.splitlines(keepends=True), file)
            exec(compile(part, file, "exec"), names)
        return names


def answers(exercise: str) -> dict[str, Answer]:
    """The published answers of an exercise such as "06_model_parallelism", by question."""
    return {name: Answer(exercise, name) for name in _stored()[exercise] if name != "imports"}


def edited(source: str, edit: Mapping[str, str]) -> str:
    """The source with each text replaced. Raises ValueError for a text that does not stand there once."""
    for text, replacement in edit.items():
        if source.count(text) != 1:
            raise ValueError(f"{text!r} stands {source.count(text)} times in the published answer, not once")
        source = source.replace(text, replacement)
    return source


def _needed(before: str, source: str) -> str:
    """What the source uses of the code above it, so that judging imports no framework that an answer does without."""
    used, kept = _names_in(ast.parse(source)), []
    for part in reversed(ast.parse(before).body):
        if _bound(part) & used:
            used |= _names_in(part)
            kept.append(part)
    return "\n".join(ast.unparse(part) for part in reversed(kept))


def _names_in(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _bound(part: ast.stmt) -> set[str]:
    if isinstance(part, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in part.names}
    defined = {part.name} if isinstance(part, (ast.FunctionDef, ast.ClassDef)) else set()
    return defined | {
        node.id for node in ast.walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


@functools.cache
def _stored() -> dict[str, dict[str, str]]:
    return json.loads(FILE.read_text(encoding="utf-8"))
