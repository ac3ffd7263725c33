"""Every exercise: solution, blank, mistakes, seeds, generated files.

`SEEDS=20 python -m pytest tests/test_exercises.py` tries the solutions on 20 seeds, with CI=true those that take long
too. SEEDS_OF_MISTAKES=20 does so for the known mistakes of quick questions, and with CI=true SEEDS_OF_LONG=20 for
those of long ones, which takes hours: SEEDS_OF_LONG=5:10 is a part.
"""

import functools
import linecache
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import recorded_mistakes
from installed import need
from wrong_answers import stand_ins

from course_lib import planner
from course_lib.exercises import judge as judging
from course_lib.exercises import judges
from course_lib.exercises.ask import ask
from course_lib.exercises.judge import judge, same
from course_lib.exercises.judges import ex04_clusters, published
from course_lib.exercises.notebook_cells import question_tags, read_notebook
from course_lib.exercises.verdict import Verdict
from course_lib.staff import new_exercises
from course_lib.staff.grade.sandbox_side import channel, guard

need("tensorflow")

ROOT = Path(__file__).parents[1]
SEEDS, SEEDS_OF_MISTAKES, SEEDS_OF_LONG = (
    tuple(range(*map(int, os.environ.get(name, default).split(":"))))
    for name, default in (("SEEDS", "2"), ("SEEDS_OF_MISTAKES", "1"), ("SEEDS_OF_LONG", "1"))
)
LONG_NUMBER = 4  # digits; shorter ones are shown by accident
EXERCISES = tuple(judges.MODULES)
QUESTIONS = [(exercise, question) for exercise in EXERCISES for question in judges.questions(exercise)]
MISTAKES = [(exercise, question, mistake) for exercise, question in QUESTIONS for mistake in question.mistakes]
RECORDED = [
    (exercise, question, mistake)
    for exercise in EXERCISES
    for question in recorded_mistakes.recorded_questions(exercise)
    for mistake in question.mistakes
]


def is_run(exercise, question, mistake) -> bool:
    """Of a question whose mistakes are recorded the first is run, and all where more seeds are asked for."""
    recorded = (exercise, question, mistake) in RECORDED
    return not recorded or mistake is question.mistakes[0] or seeds_of(question) != (0,)


def seeds_of(question) -> tuple[int, ...]:
    return SEEDS_OF_LONG if question.takes_long else SEEDS_OF_MISTAKES


RUN = [row for row in MISTAKES if is_run(*row)]

# Verdicts that hold a number of the right answer and still do not give it away: twice the bytes are off by the bytes;
# a scale is an input.
AGREE = ("no cap", "sums tested")


def named(*parts) -> str:
    return "-".join(getattr(part, "name", part) for part in parts).replace(" ", "_")


def cases(rows, seeds=False) -> list:
    """One case per row, and per seed if asked, one where it takes long; those run in CI alone.

    `make test` meets them too: nbval runs each solution notebook with its checks.
    """
    made = []
    for row in rows:
        marks = (pytest.mark.slow,) if row[1].takes_long else ()
        for seed in seeds_of(row[1]) if seeds else (None,):
            values, suffix = (row, "") if seed is None else ((*row, seed), f"-{seed}")
            made.append(pytest.param(*values, marks=marks, id=named(*row) + suffix))
    return made


every_question = pytest.mark.parametrize("exercise, question", QUESTIONS, ids=[named(*one) for one in QUESTIONS])
each_question = pytest.mark.parametrize("exercise, question", cases(QUESTIONS))
each_mistake_and_seed = pytest.mark.parametrize("exercise, question, mistake, seed", cases(RUN, seeds=True))
each_recorded_mistake = pytest.mark.parametrize(
    "exercise, question, mistake", RECORDED, ids=[named(*row) for row in RECORDED]
)


@pytest.fixture(autouse=True)
def a_learner_who_set_the_seed():
    """A verdict must not depend on TensorFlow's global seed, which makes stateful draws repeat themselves."""
    import tensorflow as tf

    tf.random.set_seed(0)


@pytest.fixture(scope="module", autouse=True)
def one_search_each():
    """Every wrong answer to exercise 10's q3 searches the same five clusters, and a search depends on nothing else."""
    search, found = planner.search, {}

    def once(*arguments, **options):
        asked = repr((arguments, options))  # a chip has a dict
        return found[asked] if asked in found else found.setdefault(asked, search(*arguments, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "search", once)
        yield


@pytest.fixture(scope="module", autouse=True)
def each_mistake_is_asked_once():
    """A verdict runs the known mistakes before the one that fits, and a question's tests would run each one again."""
    asked, of, answers_of = {}, [], judging.answers_of

    def once(question, mistake, seed):
        if of != [question]:
            of[:] = [question]
            asked.clear()  # of another question, megabytes
        key = mistake.name, seed
        return asked[key] if key in asked else asked.setdefault(key, answers_of(question, mistake, seed))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "answers_of", once)
        yield


@pytest.fixture(scope="module")
def solved():
    """The names that a solution notebook defines, run once per exercise."""
    return _cached(lambda exercise: _names(ROOT / "solutions" / f"{exercise}.ipynb"))


@pytest.fixture(scope="module")
def blank():
    return _cached(lambda exercise: _names(ROOT / "exercises" / f"{exercise}.ipynb"))


@pytest.fixture(scope="module")
def right_answers(solved):
    """What the probe gives for a solution."""
    asked = {(exercise, question.name): question for exercise, question in QUESTIONS}
    return _cached(lambda key: ask(asked[key[:2]].probe, asked[key[:2]].asks_for, solved(key[0]), key[2]))


def _cached(make):
    made = {}
    return lambda key: made[key] if key in made else made.setdefault(key, make(key))


def _names(path: Path) -> dict[str, object]:
    """Execute the set-up and the answers in a plain namespace.

    The cells that picture an answer stay out: a blank cannot give them, and their
    collectives would meet those of other tests in this process.
    """
    code = [cell for cell in read_notebook(path)["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {"__name__": "__main__"}  # as in a notebook
    for place, cell in enumerate(code):
        if place == 0 or question_tags(cell):
            source, file = re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", cell["source"]), f"<{path.stem}, cell {place}>"
            # This process has TensorFlow's four devices already, and no answer alone needs JAX's.
            source = re.sub(r'devices\.simulate\(\d+, "jax"\)', "None", source)
            source = re.sub(r"devices\.simulate\(\d(, accelerators=False)?\)", "devices.simulate(4)", source)
            # A worker program travels as its source, which Python looks up here, as IPython lets it.
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
            exec(compile(source, file, "exec"), names)
    return names


@pytest.mark.parametrize("exercise", EXERCISES)
def test_has_four_to_six_questions_with_distinct_names(exercise):
    names = [question.name for question in judges.questions(exercise)]
    assert names == [f"q{number}" for number in range(1, len(names) + 1)]
    assert 4 <= len(names) <= 6


@every_question
def test_knows_at_least_four_mistakes(exercise, question):
    names = [mistake.name for mistake in question.mistakes]
    assert len(set(names)) == len(names) >= 4
    assert all(mistake.what and mistake.where for mistake in question.mistakes)


@every_question
def test_probe_lives_apart_from_the_references(exercise, question):
    assert question.probe.__module__.startswith("course_lib.exercises.probes.")


@each_question
def test_solution_is_right_on_inputs_that_are_drawn_afresh(exercise, question, solved):
    """A question that takes long has one seed here, and others where its solution's notebook checks itself."""
    seeds = SEEDS[:1] if question.takes_long and "SEEDS" not in os.environ else SEEDS
    answers = [ask(question.probe, question.asks_for, solved(exercise), seed) for seed in seeds]
    for seed, given in zip(seeds, answers):
        verdict = judge(question, given, seed)
        assert verdict.right and verdict.points == question.points, f"seed {seed}: {verdict.message}"
    assert len(seeds) == 1 or not same(*answers[:2])


@pytest.mark.parametrize("exercise, question", cases([row for row in QUESTIONS if not row[1].takes_long]))
def test_nothing_is_replaced_where_the_class_grader_looks(exercise, question, solved):
    """It looks as soon as the learner's code comes back, and takes what a probe has replaced for a learner's doing.

    And it stops a check that does what only its own hook may do.
    """
    names, found, refused = solved(exercise), [], refused_events()
    changed, _ = guard.take_snapshot()
    refused.clear()

    def look(result):
        found.append(changed(near=bool(found)))
        return result

    ask(question.probe, question.asks_for, names, 0, look)
    assert not any(found), found
    assert not refused, refused


@functools.cache
def refused_events() -> list[str]:
    """What this process does from now on that ends a submission's process: a list that grows."""
    seen = []
    sys.addaudithook(lambda event, _: seen.append(event) if event in channel.REFUSED else None)
    return seen


@every_question
def test_blank_fails_as_blank(exercise, question, blank):
    answers = ask(question.probe, question.asks_for, blank(exercise), seed=0)
    assert answers["stopped"]["kind"] == "blank", answers
    verdict = judge(question, answers, seed=0)
    assert not verdict.right and verdict.points == 0 and "still blank" in verdict.summary


@each_mistake_and_seed
def test_mistake_fails_and_is_recognised_as_itself(exercise, question, mistake, seed, right_answers):
    answers = ask(question.probe, question.asks_for, stand_ins(exercise, question, mistake), seed)
    verdict = assert_recognised(question, mistake, answers, seed)
    if seed == SEEDS_OF_MISTAKES[0] and not question.takes_long and mistake.name not in AGREE:
        assert_nothing_given_away(verdict, answers, right_answers((exercise, question.name, seed)))


def assert_nothing_given_away(verdict, answers, right):
    tokens = (token.rstrip(".,") for token in re.findall(r"\d[\d.,e+-]*", verdict.message))
    shown = {token for token in tokens if sum(map(str.isdigit, token)) >= LONG_NUMBER}
    assert not shown or not shown & (set(long_numbers(right)) - set(long_numbers(answers))), (
        "numbers of the right answer are shown"
    )


def long_numbers(value) -> Iterator[str]:
    """Every long number of some plain values, as a verdict may write it."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from long_numbers(item)
    elif isinstance(value, np.ndarray):
        yield from long_numbers(value.ravel()[:1000].tolist())
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        forms = {repr(value), f"{value:g}", f"{value:,}", f"{value:.4g}", f"{value:,.0f}"}
        yield from (form.lstrip("-") for form in forms if sum(map(str.isdigit, form)) >= LONG_NUMBER)


@each_recorded_mistake
def test_recorded_mistake_fails_and_is_recognised_as_itself(exercise, question, mistake, right_answers):
    answers = recorded_mistakes.answers_of(exercise, question, mistake)
    verdict = assert_recognised(question, mistake, answers, recorded_mistakes.SEED)
    if not question.takes_long and mistake.name not in AGREE:
        right = right_answers((exercise, question.name, recorded_mistakes.SEED))
        assert_nothing_given_away(verdict, answers, right)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_each_recording_has_a_name_of_its_own(exercise):
    names = [(question.name, mistake.name) for question, mistake in recorded_mistakes.recorded(exercise)]
    assert len({*names}) == len(names)


def test_a_recording_knows_what_its_probes_import():
    """Else a change there leaves old answers in place."""
    source = (ROOT / "course_lib" / "exercises" / "probes" / "ex12.py").read_text()
    folders = {path.name: path.parent.name for path in recorded_mistakes._imports(source)}
    assert folders["incidents.py"] == "given" and folders["workers.py"] == "probes"


def assert_recognised(question, mistake, answers, seed) -> Verdict:
    verdict = judge(question, answers, seed)
    assert not verdict.right and verdict.points == 0
    assert verdict.mistake == mistake.name, verdict.message
    assert verdict.hints == (mistake.what, mistake.where)
    return verdict


@pytest.mark.parametrize("seed", [0, 19, 21])  # where the rows differ by as much as Keras' first numbers may
def test_rows_in_another_order_are_not_called_first_numbers(seed):
    settings = ex04_clusters.probes.visits(seed)
    right = ex04_clusters._table_after(settings, settings["batches"])
    counted = {"counted": ex04_clusters.probes.UPDATES}
    assert not ex04_clusters._not_zeros({"table": np.concatenate([right[::2], right[1::2]]).tolist(), **counted}, seed)
    first = np.random.default_rng(seed).uniform(-0.05, 0.05, right.shape)
    assert ex04_clusters._not_zeros({"table": (right + first).tolist(), **counted}, seed)


def test_published_answers_are_what_generation_gives():
    wanted = new_exercises.published_answers(sorted((ROOT / "solutions").glob("*.ipynb")))
    assert published.FILE.read_bytes() == wanted, "run `course new-exercises`"


def test_exercises_are_what_generation_gives():
    for path in sorted((ROOT / "solutions").glob("*.ipynb")):
        wanted = new_exercises.as_bytes(new_exercises.exercise_of(read_notebook(path), path))
        assert (ROOT / "exercises" / path.name).read_bytes() == wanted, f"{path.name}: run `course new-exercises`"


@pytest.mark.parametrize("folder", ["solutions", "exercises"])
def test_every_exercise_of_the_bank_has_its_file_and_no_other(folder):
    assert {path.stem for path in (ROOT / folder).glob("*.ipynb")} == set(EXERCISES)
