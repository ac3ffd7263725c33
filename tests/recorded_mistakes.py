"""What the probes of questions that take long answer to their known mistakes, recorded by running every one.

`python tests/recorded_mistakes.py [EXERCISE ...]` runs them again, half a minute each,
and stores the answers. `make test` judges all that is stored; CI also runs one of each question.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from course_lib.exercises import judges
from course_lib.exercises.ask import ask
from course_lib.exercises.question import Question

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).with_name("recorded_mistakes")
SEED = 0


def long_questions(exercise: str) -> list[Question]:
    return [question for question in judges.questions(exercise) if question.takes_long]


def source_digest(exercise: str) -> str:
    """Of the exercise's mistakes and probes, and what all probes share: another digest asks for another recording."""
    module, others = (
        judges.MODULES[exercise],
        tuple(name for name in judges.MODULES.values() if name != judges.MODULES[exercise]),
    )
    folder = ROOT / "course_lib" / "exercises"
    paths = sorted([*folder.glob(f"judges/{module}*.py"), *folder.glob("probes/*.py")])
    return hashlib.sha256(
        b"\0".join(path.read_bytes() for path in paths if not path.name.startswith(others))
    ).hexdigest()


def read(exercise: str) -> dict:
    """The digest under "source", and per question and mistake the answers; arrays have become lists."""
    first, *rest = map(json.loads, (FOLDER / f"{exercise}.jsonl").read_text().splitlines())
    return {**first, **{(line["question"], line["mistake"]): line["answers"] for line in rest}}


def record(exercise: str) -> None:
    """Run every known mistake of an exercise's long questions, and store what their probes answer."""
    lines = [{"source": source_digest(exercise)}]
    for question in long_questions(exercise):
        for mistake in question.mistakes:
            answers = ask(question.probe, question.asks_for, question.stand_ins(mistake), SEED)
            lines.append({"question": question.name, "mistake": mistake.name, "answers": answers})
            print(f"{exercise} {question.name}: {mistake.name}", flush=True)
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
    chosen = parser.parse_args().exercise or known
    if unknown := set(chosen) - set(known):
        parser.error(f"no questions that take long in {', '.join(sorted(unknown))}; they are in {', '.join(known)}")
    devices.simulate(4)
    for name in chosen:
        record(name)
