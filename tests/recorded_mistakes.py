"""What the probes of questions that take long answer to their known mistakes, recorded by running every one.

`python tests/recorded_mistakes.py [EXERCISE ...]` runs those whose code has changed, half a
minute each, and stores the answers. `make test` judges all that is stored; CI also runs one of each question.
"""

import argparse
import ast
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from wrong_answers import stand_ins

from course_lib.exercises import judges
from course_lib.exercises.ask import ask
from course_lib.exercises.judges import published
from course_lib.exercises.question import Mistake, Question

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).with_name("recorded_mistakes")
EXERCISES = ROOT / "course_lib" / "exercises"
SEED = 0


def long_questions(exercise: str) -> list[Question]:
    return [question for question in judges.questions(exercise) if question.takes_long]


def source_digest(exercise: str, question: Question, mistake: Mistake) -> str:
    """Of what the answers depend on, whatever its layout and comments: the probes, what they import from probes and
    from what is given, and the mistake itself.
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
    return hashlib.sha256("\0".join(trees).encode()).hexdigest()


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
    """By question and mistake: "source", its digest, and "answers", in which arrays have become lists."""
    lines = map(json.loads, (FOLDER / f"{exercise}.jsonl").read_text().splitlines())
    return {(line["question"], line["mistake"]): line for line in lines}


def record(exercise: str, again: bool) -> None:
    """Run known mistakes of an exercise's long questions, and store what their probes answer.

    again  all of them; else those whose digest is another one than the stored
    """
    stored, lines = read(exercise) if (FOLDER / f"{exercise}.jsonl").exists() else {}, []
    for question in long_questions(exercise):
        for mistake in question.mistakes:
            line = stored.get((question.name, mistake.name), {})
            source = source_digest(exercise, question, mistake)
            if again or line.get("source") != source:
                answers = ask(question.probe, question.asks_for, stand_ins(exercise, question, mistake), SEED)
                line = {"question": question.name, "mistake": mistake.name, "source": source, "answers": answers}
                print(f"{exercise} {question.name}: {mistake.name}", flush=True)
            lines.append(line)
    FOLDER.mkdir(exist_ok=True)
    text = "".join(json.dumps(line, default=np.ndarray.tolist) + "\n" for line in lines)
    for place in (f"{ROOT}/", f"{sys.prefix}/"):  # an exception may quote files
        text = text.replace(place, "")
    (FOLDER / f"{exercise}.jsonl").write_text(text)


if __name__ == "__main__":
    from course_lib import devices

    known = [exercise for exercise in judges.MODULES if long_questions(exercise)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("exercise", nargs="*", help=f"all by default: {', '.join(known)}")
    parser.add_argument("--again", action="store_true", help="also those whose code is as it was recorded")
    arguments = parser.parse_args()
    chosen = arguments.exercise or known
    if unknown := set(chosen) - set(known):
        parser.error(f"no questions that take long in {', '.join(sorted(unknown))}; they are in {', '.join(known)}")
    devices.simulate(4)
    for name in chosen:
        record(name, arguments.again)
