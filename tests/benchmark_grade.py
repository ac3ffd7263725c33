"""Submissions a minute of `course grade` and of two usual graders, in one run: `python tests/benchmark_grade.py`.

Throughput: copies of a trivial notebook (exercise 00's first two questions in pure Python; at least 250 a minute on
two cores) and of exercise 00's solution (TensorFlow on four devices; at least 30). Each copy differs by a comment.

Others: otter-grader and nbgrader on the same answers with as strong tests, through their own command lines, installed
from the package index. Neither runs several at once without Docker, so two commands are also started together.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from unprivileged import CHECKOUT, as_nobody, give_to_nobody

JOBS = 2
PACKAGES = {"otter-grader": ("otter-grader==7.0.0", "ipykernel"), "nbgrader": ("nbgrader==0.9.6",)}
SET_UP = 'from course_lib.exercises import Exercise\ncheck = Exercise("00_start_here")'
SOLUTION = json.loads((CHECKOUT / "solutions" / "00_start_here.ipynb").read_text(encoding="utf-8"))
TAGGED = {tag: "".join(cell["source"]) for cell in SOLUTION["cells"] for tag in cell["metadata"].get("tags", [])}
ANSWERS = {name: TAGGED[name] for name in ("q1", "q2")}
TESTS = {  # what the others run: as many inputs as the course's own checks, and the same targets
    "q1": """import random
for batch, replicas in [(48, 8), (2, 5)] + [(random.randint(20, 400), random.randint(2, 9)) for _ in range(4)]:
    sizes = shard_sizes(batch, replicas)
    assert len(sizes) == replicas and all(type(size) is int and size >= 0 for size in sizes)
    assert sum(sizes) == batch and max(sizes) - min(sizes) <= 1""",
    "q2": """import random
for examples, batch in [(1024, 64)] + [(random.randint(100, 4000), 64) for _ in range(4)]:
    assert steps_per_epoch(examples, batch, True) == examples // batch
    assert type(steps_per_epoch(examples, batch, False)) is int
    assert steps_per_epoch(examples, batch, False) == (examples + batch - 1) // batch""",
}


def notebook(sources: list[str], metadata: list[dict] | None = None) -> str:
    code = {"cell_type": "code", "outputs": [], "execution_count": None}
    cells = [
        {**code, "id": f"cell-{number}", "metadata": more, "source": source}
        for number, (source, more) in enumerate(zip(sources, metadata or [{}] * len(sources)))
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


def trivial(copy: int) -> str:
    answers = [[f"# copy {copy}\n{answer}", f'check("{name}")'] for name, answer in ANSWERS.items()]
    metadata = [more for name in ANSWERS for more in ({"tags": [name]}, {})]
    return notebook([SET_UP, *sum(answers, [])], [{}, *metadata])


def tensorflow(copy: int) -> str:
    title, set_up, *rest = SOLUTION["cells"]
    set_up = {**set_up, "source": [*set_up["source"], f"\n# copy {copy}"]}
    return json.dumps({**SOLUTION, "cells": [title, set_up, *rest]})


def commands_seconds(commands: list[list], folder: Path, environment: Path | None = None, together: int = 1) -> float:
    """Run the commands as nobody in the folder, some of them together; a failed one shows in the marks."""
    give_to_nobody(folder)
    reach, home, variables = [folder], None, None
    if environment:  # its commands start others by name, and a first start fills caches in the home
        reach, home = [folder, environment], environment / "home"
        variables = {**os.environ, "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    prepared = [as_nobody([*map(str, command)], *reach, home=home) for command in commands]

    def run(command: list[str]) -> None:
        ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
        if ended.returncode:
            print(f"exit code {ended.returncode}: {ended.stderr.strip()[-300:]}", file=sys.stderr)

    began = time.perf_counter()
    with ThreadPoolExecutor(together) as pool:
        list(pool.map(run, prepared))
    return time.perf_counter() - began


def ours(make, copies: int, questions: int) -> tuple[float, int]:
    """Seconds, and how many copies have that many questions right."""
    folder = Path(tempfile.mkdtemp(prefix="course-"))
    submissions, secret, out = folder / "submissions", folder / "secret", folder / "out"
    submissions.mkdir()
    secret.write_text("the benchmark's own")
    for copy in range(copies):
        (submissions / f"learner{copy:04}.ipynb").write_text(make(copy))
    command = [sys.executable, "-m", "course_lib.cli", "grade", "submissions", "--out", "out", "--secret", "secret"]
    seconds = commands_seconds([[*command, "--jobs", JOBS]], folder)
    graded = [json.loads(path.read_text())["verdicts"] for path in (out / "submissions").glob("*.json")]
    shutil.rmtree(folder)
    return seconds, sum(sum(verdict["right"] for verdict in verdicts) >= questions for verdicts in graded)


def otter(environment: Path, copies: int, together: int) -> tuple[float, int]:
    folder = Path(tempfile.mkdtemp(prefix="otter-"))
    (folder / "tests").mkdir()
    for name, test in TESTS.items():
        body = test.replace("\n", "\n    ")
        asked = ANSWERS[name].split("(")[0].removeprefix("def ")
        text = f'from otter.test_files import test_case\nOK_FORMAT, name, points = False, "{name}", 1\n'
        (folder / "tests" / f"{name}.py").write_text(f"{text}@test_case()\ndef test({asked}):\n    {body}\n")
    command = [environment / "bin" / "otter"]
    generate = ["generate", "-t", "tests", "-o", "tests.zip", "--no-requirements", "--no-environment"]
    commands_seconds([[*command, *generate]], folder, environment)
    set_up = 'import otter\ngrader = otter.Notebook("trivial.ipynb")'
    for copy in range(copies):
        (folder / f"{copy}").mkdir()
        answers = [[f"# copy {copy}\n{answer}", f'grader.check("{name}")'] for name, answer in ANSWERS.items()]
        (folder / f"{copy}" / "trivial.ipynb").write_text(notebook([set_up, *sum(answers, [])]))
    run = [*command, "run", "--no-logo", "-a", "tests.zip"]
    commands = [[*run, "-o", copy, f"{copy}/trivial.ipynb"] for copy in range(copies)]
    seconds = commands_seconds(commands, folder, environment, together)
    scores = [json.loads(path.read_text())["tests"] for path in folder.glob("*/results.json")]
    shutil.rmtree(folder)
    return seconds, sum(sum(test.get("score", 0) for test in tests) == len(TESTS) for tests in scores)


def nbgrader(environment: Path, copies: int, together: int) -> tuple[float, int]:
    folder = Path(tempfile.mkdtemp(prefix="nbgrader-"))
    answer = {"grade": False, "solution": True, "locked": False, "task": False, "schema_version": 3}
    test = {"grade": True, "solution": False, "locked": True, "task": False, "schema_version": 3, "points": 1}
    sources = [source for name in ANSWERS for source in (ANSWERS[name], TESTS[name])]
    kinds = [{**kind, "grade_id": f"{name}-{kind['grade']}"} for name in ANSWERS for kind in (answer, test)]
    metadata = [{"nbgrader": kind} for kind in kinds]
    learners = [f"{'ab'[copy % 2]}{copy}" for copy in range(copies)]
    for place in ("source", *(f"submitted/{learner}" for learner in learners)):
        (folder / place / "trivial").mkdir(parents=True)
        text = notebook([f"# copy {place}\n{sources[0]}", *sources[1:]], metadata)
        (folder / place / "trivial" / "trivial.ipynb").write_text(text)
    command = [environment / "bin" / "nbgrader"]
    commands_seconds([[*command, "generate_assignment", "trivial"]], folder, environment)
    groups = ["*"] if together == 1 else ["a*", "b*"]
    autograde = [[*command, "autograde", "trivial", "--student", group] for group in groups]
    seconds = commands_seconds(autograde, folder, environment, together)
    commands_seconds([[*command, "export"]], folder, environment)
    scores = [float(row["raw_score"] or 0) for row in csv.DictReader((folder / "grades.csv").read_text().splitlines())]
    shutil.rmtree(folder)
    return seconds, sum(score == len(TESTS) for score in scores)


def installed(graders: Path, name: str) -> Path:
    """The folder of the grader's own environment, made if it is not there."""
    folder = graders.absolute() / name
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *PACKAGES[name]], check=True)
    return folder


def a_minute(name: str, copies: int, measured: tuple[float, int], against: float | None = None) -> float:
    seconds, right = measured
    rate = 60 * copies / seconds
    ratio = f"; course grade is {against / rate:.1f} times as fast" if against else ""
    print(f"{name}: {rate:.0f} submissions a minute, {right} of {copies} with full marks{ratio}", flush=True)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trivial", type=int, default=100, help="copies of the trivial notebook")
    parser.add_argument("--tensorflow", type=int, default=20, help="copies of exercise 00's solution")
    parser.add_argument(
        "--others", type=int, default=10, help="copies for each of the other graders; with 0 `course grade` alone"
    )
    parser.add_argument("--graders", type=Path, help="where the others' environments stay; a temporary folder else")
    chosen = parser.parse_args()
    rate = a_minute(f"course grade, trivial, {JOBS} jobs", chosen.trivial, ours(trivial, chosen.trivial, 2))
    a_minute(f"course grade, TensorFlow, {JOBS} jobs", chosen.tensorflow, ours(tensorflow, chosen.tensorflow, 4))
    if not chosen.others:
        return
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o755)
        for name, grade in {"otter-grader": otter, "nbgrader": nbgrader}.items():
            environment = installed(chosen.graders or Path(temporary), name)
            grade(environment, 1, 1)  # warm
            for together, how in {1: "one at a time", 2: "two commands at once"}.items():
                a_minute(f"{name}, trivial, {how}", chosen.others, grade(environment, chosen.others, together), rate)


if __name__ == "__main__":
    main()
