"""What probes answer to known mistakes, recorded by running every one: of questions that take long, or a second or two;
of those that take long, also to what their checks once called right, tests/once_passed.toml.

`python tests/recorded_mistakes.py [EXERCISE ...]` runs those whose code has changed, up to half a minute each, and
stores the answers. Tests judge all that is stored, and run the first mistake of each question.
"""

import argparse
import ast
import hashlib
import json
import re
import sys
import tomllib
from pathlib import Path

from wrong_answers import stand_ins

from course_lib.exercises import judges
from course_lib.exercises.ask import ask
from course_lib.exercises.judges import published
from course_lib.exercises.question import Answers, Mistake, Question
from course_lib.staff.grade.sandbox_side.answers import pack, unpack

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).with_name("recorded_mistakes")
EXERCISES = ROOT / "course_lib" / "exercises"
SEED = 0
# Quick questions whose known mistakes take a second or two each, as they trace a step: together a twelfth of what
# `make test` would take. Answers of a hundred kilobytes each would be too much to store.
QUICK = {
    "01_one_device": ("q5",),
    "02_data_parallelism": ("q2",),
    "08_gradient_accumulation": ("q2", "q5"),
    "09_mixed_precision": ("q3",),
}
VERSIONS = re.findall(r"(?m)^(?:jax|keras|numpy|tensorflow)==\S+", (ROOT / "requirements.lock").read_text())


def recorded_questions(exercise: str) -> list[Question]:
    quick = QUICK.get(exercise, ())
    return [question for question in judges.questions(exercise) if question.takes_long or question.name in quick]


def once_passed(exercise: str) -> list[tuple[Question, Mistake]]:
    """Wrong answers that a check once called right, each as a mistake without a hint."""
    rows = tomllib.loads(Path(__file__).with_name("once_passed.toml").read_text(encoding="utf-8")).get(exercise, {})
    return [
        (question, Mistake(name=row["what"], what="", where="", edit=dict(row["edit"])))
        for question in judges.questions(exercise)
        for row in rows.get(question.name, ())
    ]


def recorded(exercise: str) -> list[tuple[Question, Mistake]]:
    known = [(question, mistake) for question in recorded_questions(exercise) for mistake in question.mistakes]
    return known + [row for row in once_passed(exercise) if row[0].takes_long]


def source_digest(exercise: str, question: Question, mistake: Mistake) -> str:
    """Of what the answers depend on, whatever its layout and comments: the probes, what they import from probes and
    from what is given, the mistake itself, and the locked versions of the frameworks.
    """
    module = judges.MODULES[exercise]
    wrong = Path(__file__).parent / "wrong_answers" / f"{module}.py"
    if mistake.edit:
        sources = [question.answer.before, published.edited(question.answer.source, mistake.edit)]
    else:
        sources = [wrong.read_text()] if not mistake.wrong else []
    modules, left = {}, [path.read_text() for path in sorted(EXERCISES.glob(f"probes/{module}*.py"))] + sources
    texts = list(left)
    while left:
        new = {path: path.read_text() for path in _imports(left.pop()) if path not in modules}
        modules |= new
        left += new.values()
    texts += [modules[path] for path in sorted(modules)]
    trees = [ast.dump(_without_docstrings(ast.parse(text))) for text in texts]
    return hashlib.sha256("\0".join([*trees, *VERSIONS]).encode()).hexdigest()


def _imports(source: str) -> list[Path]:
    """The modules of probes and of what is given that a source imports."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("course_lib.exercises"):
            found += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    places = [ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in found]
    return [path for path in places if path.parent.name in ("probes", "given") and path.exists()]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree


def read(exercise: str) -> dict[tuple[str, str], dict]:
    """By question and mistake: "source", its digest, and "answers", packed."""
    lines = map(json.loads, (FOLDER / f"{exercise}.jsonl").read_text().splitlines())
    return {(line["question"], line["mistake"]): line for line in lines}


def answers_of(exercise: str, question: Question, mistake: Mistake) -> Answers:
    """What the probe gave for the mistake when it was recorded; fails where its code has changed since."""
    line = read(exercise).get((question.name, mistake.name), {})
    assert line.get("source") == source_digest(exercise, question, mistake), (
        f"its code has changed: run python tests/recorded_mistakes.py {exercise}"
    )
    return unpack(line["answers"])


def record(exercise: str, again: bool) -> None:
    """Run the mistakes of an exercise that are recorded, and store what their probes answer.

    again  all of them; else those whose digest is another one than the stored
    """
    stored, lines = read(exercise) if (FOLDER / f"{exercise}.jsonl").exists() else {}, []
    for question, mistake in recorded(exercise):
        line, source = stored.get((question.name, mistake.name), {}), source_digest(exercise, question, mistake)
        if again or line.get("source") != source:
            answers = ask(question.probe, question.asks_for, stand_ins(exercise, question, mistake), SEED)
            line = {"question": question.name, "mistake": mistake.name, "source": source, "answers": pack(answers)}
            print(f"{exercise} {question.name}: {mistake.name}", flush=True)
        lines.append(line)
    FOLDER.mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    for place in (f"{ROOT}/", f"{sys.prefix}/"):  # an exception may quote files
        text = text.replace(place, "")
    (FOLDER / f"{exercise}.jsonl").write_text(text)


if __name__ == "__main__":
    from course_lib import devices

    known = [exercise for exercise in judges.MODULES if recorded_questions(exercise)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("exercise", nargs="*", help=f"all by default: {', '.join(known)}")
    parser.add_argument("--again", action="store_true", help="also those whose code is as it was recorded")
    arguments = parser.parse_args()
    chosen = arguments.exercise or known
    if unknown := set(chosen) - set(known):
        parser.error(f"nothing is recorded of {', '.join(sorted(unknown))}, only of {', '.join(known)}")
    devices.simulate(4)
    for name in chosen:
        record(name, arguments.again)
