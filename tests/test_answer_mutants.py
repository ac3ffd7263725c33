"""Single edits of the published answers: that they are made, and that the checks refuse them.

All of them are tried by `python tests/answer_mutants.py`; here a few of each quick question are, and the wrong answers
of people that a check once called right.
"""

import contextlib
import dataclasses
import io
import tomllib

import answer_mutants
import pytest
import recorded_mistakes
from installed import need
from test_exercises import one_search_each  # noqa: F401 (a fixture)

from course_lib.exercises import judges
from course_lib.exercises.ask import ask
from course_lib.exercises.judge import judge

need("tensorflow")

FEW = 8  # of each question
SECONDS = 15  # for one check; its edit may have made a loop that never ends
SAME = tomllib.loads(answer_mutants.SAME_FILE.read_text(encoding="utf-8"))
QUESTIONS = [(exercise, question) for exercise in judges.MODULES for question in judges.questions(exercise)]
ONCE_PASSED = [
    pytest.param(exercise, *row, id=f"{exercise}-{row[0].name}-{row[1].name}".replace(" ", "_"))
    for exercise in judges.MODULES
    for row in recorded_mistakes.once_passed(exercise)
]
ROW_BY_ROW = {  # y is summed in several calls
    "def forward(": "import jax.numpy as jnp\n\n\ndef forward(",
    'all_reduce(x @ kernel, "model")': "jnp.stack([all_reduce(row @ kernel, 'model') for row in x])",
}
ONCE_REFUSED = [  # right edits of published answers
    ("01_one_device", "q5", {"step(batch).numpy()": "print(float(loss := step(batch)), loss.numpy())"}),
    ("07_tensor_parallelism_and_sharding", "q2", ROW_BY_ROW),
]
SOURCE = '''
def steps(examples, batch, drop=False):
    """Docstring."""
    sizes = sorted(examples, key=len)
    if drop and batch > 1:
        sizes = sizes[1:]
    return min(sum(sizes) // batch + 1, 0.5)
'''


def test_edits_are_those_that_a_learner_gets_wrong():
    changes = {one.change.partition(" -> ")[2] for one in answer_mutants.mutants(SOURCE)}
    assert changes >= {
        "sizes = examples",  # a call left out
        "if drop or batch > 1:",
        "if drop:",
        "if batch > 1:",
        "if drop and batch >= 1:",
        "if drop and batch < 1:",
        "if drop and batch > 2:",
        "sizes = sizes[1:]",  # without its condition
        "pass",
        "sizes = sizes[:]",
        "sizes = sizes[2:]",
        "return max(sum(sizes) // batch + 1, 0.5)",
        "return min(max(sizes) // batch + 1, 0.5)",
        "return min(sum(sizes) / batch + 1, 0.5)",
        "return min(sum(sizes) // batch, 0.5)",
        "return min(sum(sizes) // batch - 1, 0.5)",
        "return min(sum(sizes) // batch + 1, 1.0)",
        "return min(0.5, sum(sizes) // batch + 1)",
        "return min(0.5)",
        "return sum(sizes) // batch + 1",
        "def steps(examples, batch, drop=True):",
    }


def test_sizes_are_cut_at_the_beginning_of_a_function():
    source = (
        'def steps(examples: list[int], batch: int, rate: float):\n    """Docstring."""\n    return examples, batch'
    )
    cut = [one.source.splitlines()[-2].strip() for one in answer_mutants.cut_sizes(source)]
    assert cut == ["examples = examples[:100]", "batch = min(batch, 1000)"]


def test_each_listed_change_is_still_an_edit_of_its_answer():
    known = {(exercise, question.name): question for exercise, question in QUESTIONS}
    for exercise, of_exercise in SAME.items():
        for name, rows in of_exercise.items():
            made = {one.change for one in answer_mutants.mutants(known[exercise, name].answer.source)}
            left_over = [row["change"] for row in rows if row["change"] not in made or len(row["why"]) < 20]
            assert not left_over, f"{exercise} {name}: no edit any more, or without a reason"


@pytest.mark.parametrize(
    "exercise, question",
    [
        pytest.param(*row, id=f"{row[0]}-{row[1].name}", marks=pytest.mark.slow)
        for row in QUESTIONS
        if not row[1].takes_long
    ],
)
def test_edited_answers_are_refused(exercise, question):
    nameless, made = dataclasses.replace(question, mistakes=()), answer_mutants.mutants(question.answer.source)
    for number in answer_mutants.chosen(exercise, question, FEW, seed=0):
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                names = question.answer.names_of(made[number].source)
            except Exception:
                continue  # its cell raises, and defines no answer
            said = judge(nameless, ask(question.probe, question.asks_for, names, 0, seconds=SECONDS), 0)
        assert not said.right, made[number].change


@pytest.mark.parametrize("exercise, question, mistake", ONCE_PASSED)
def test_what_once_passed_is_refused(exercise, question, mistake):
    seed = recorded_mistakes.SEED
    if question.takes_long:
        answers = recorded_mistakes.answers_of(exercise, question, mistake)
    else:
        answers = ask(question.probe, question.asks_for, question.answer.names(mistake.edit), seed)
    assert not judge(question, answers, seed).right


@pytest.mark.parametrize("exercise, name, edit", ONCE_REFUSED)
def test_what_was_once_refused_is_right(exercise, name, edit):
    question = next(one for one in judges.questions(exercise) if one.name == name)
    seed = recorded_mistakes.SEED
    verdict = judge(question, ask(question.probe, question.asks_for, question.answer.names(edit), seed), seed)
    assert verdict.right, verdict.message
