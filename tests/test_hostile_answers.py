"""Answers as a sandbox may hand them out: of any shape, length, type or value. Only the right ones are right."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import recorded_mistakes
from installed import need

from course_lib.exercises import Question, Target, judges
from course_lib.exercises.ask import ask
from course_lib.exercises.judge import LONGEST_DETAIL, judge, same
from course_lib.exercises.judges import forms
from course_lib.exercises.probes import state

need("tensorflow")
test_exercises = need("test_exercises")

QUICK = {  # questions whose targets NumPy alone can judge
    "00_start_here": ("q1", "q2", "q3", "q4"),
    "02_data_parallelism": ("q1", "q4", "q5"),
    "07_tensor_parallelism_and_sharding": ("q1", "q5", "q6"),
    "08_gradient_accumulation": ("q1", "q4"),
    "09_mixed_precision": ("q1", "q2"),
    "11_capstone": ("q2", "q3", "q5"),
    "12_when_it_hangs": ("q1",),
}
QUESTIONS = [
    (exercise, question)
    for exercise in QUICK
    for question in judges.questions(exercise)
    if question.name in QUICK[exercise]
]
RECORDED = [
    (exercise, question)
    for exercise in judges.MODULES
    for question in judges.questions(exercise)
    if question.takes_long
]
SEED = recorded_mistakes.SEED
DEEP = []
for _ in range(5_000):
    DEEP = [DEEP]
ALWAYS = {
    "None": None,
    "True": True,
    "NaN": math.nan,
    "infinity": math.inf,
    "text": "1",
    "huge": 10**4_000,
    "complex": np.array([1j]),
    "empty": [],
    "dict": {},
    "deep": DEEP,
    "million": [0] * 1_000_000,
    "large array": np.zeros((1_000, 1_000)),
    "NaN array": np.full((1, 1), np.nan),
}


def changed(value):
    """(what, the value changed): what a comparison may overlook."""
    yield from (
        (what, other) for what, other in ALWAYS.items() if not (type(other) is type(value) and same(other, value))
    )
    yield "nested", [value]
    if isinstance(value, list) and value:
        yield from (("shorter", value[:-1]), ("longer", [*value, value[-1]]), ("all None", [None] * len(value)))
    if isinstance(value, dict):
        yield from ((f"without {key}", {name: value[name] for name in value if name != key}) for key in value)
    if isinstance(value, np.ndarray) and value.ndim:
        yield from [("broadcast", value.ravel()[:1])] if value.shape != (1,) else []
        yield from (("one more dimension", value[None]), ("text array", value.astype("U")))
        yield "one NaN", np.where(np.arange(value.size).reshape(value.shape) == value.size - 1, np.nan, value)


def places(value, path=()):
    """Where something can be changed: of long lists the first place and the last."""
    yield path, value
    keys = (
        list(value)
        if isinstance(value, dict)
        else sorted({0, len(value) - 1})
        if isinstance(value, list) and value
        else ()
    )
    for key in keys:
        yield from places(value[key], (*path, key))


def put(answers, path, value):
    if not path:
        return value
    answers = copy.copy(answers)
    answers[path[0]] = put(answers[path[0]], path[1:], value)
    return answers


@pytest.fixture(scope="module")
def names():
    return {
        exercise: test_exercises._names(test_exercises.ROOT / "solutions" / f"{exercise}.ipynb") for exercise in QUICK
    }


@pytest.mark.parametrize("exercise, question", QUESTIONS, ids=[f"{e}-{q.name}" for e, q in QUESTIONS])
def test_only_the_right_answers_are_right(exercise, question, names):
    answers = ask(question.probe, question.asks_for, names[exercise], SEED)
    question = dataclasses.replace(question, mistakes=())  # what a mistake's probe answers is another test's
    assert judge(question, answers, SEED).right
    for path, value in places(answers):
        for what, other in changed(value):
            verdict = judge(question, put(answers, path, other), SEED)
            assert not verdict.right, f"{path}: {what}"
            assert all(len(target.detail) <= LONGEST_DETAIL + len(" ...") for target in verdict.targets)


@pytest.mark.parametrize("exercise, question", RECORDED, ids=[f"{e}-{q.name}" for e, q in RECORDED])
def test_recognising_survives_any_answers(exercise, question):
    recorded = (recorded_mistakes.answers_of(exercise, question, mistake) for mistake in question.mistakes)
    answers = next(answers for answers in recorded if "stopped" not in answers)
    for path, value in places(answers):
        if len(path) <= 1:
            for what, other in changed(value):
                assert not judge(question, put(answers, path, other), SEED).right, f"{path}: {what}"


@pytest.mark.parametrize("exercise", judges.MODULES)
def test_every_question_names_its_form(exercise):
    """A target that met answers of another form would raise AttributeError on them, or find them wrong by luck."""
    for question in judges.questions(exercise):
        verdict = judge(dataclasses.replace(question, mistakes=()), {"nothing": "of it"}, SEED)
        assert all("your answer has no " in target.detail for target in verdict.targets), verdict.message


# Forms


@pytest.mark.parametrize(
    "form, fits, others",
    [
        (forms.number, (1, -2.5, 0), (True, "1", None, math.nan, math.inf, 2**63, 1j, [1], np.ones(1))),
        (forms.any_number, (1, math.nan, math.inf), (True, "1", None)),
        (forms.scalar, (1, math.nan, True, None), ("1", [], np.ones(()))),
        (forms.whole, (0, -1), (1.0, True, 2**63)),
        (forms.size, (0, 3), (-1, 1.0, True)),
        (forms.count, (1,), (0, True)),
        (forms.share, (0, 1, 0.5), (-0.1, 1.1, math.nan, True)),
        (forms.distance, (0, 2.5), (-0.1, math.nan, math.inf)),
        (forms.flag, (True, False), (1, 0, None)),
        (forms.text, ("", "a"), (b"a", "a" * 10_000, None)),
        (forms.words("a", "b"), ("a",), ("c", None, ["a"])),
        (forms.replicas, (2, 8), (1, 0, True, 2.0, 10**6)),
        (
            forms.devices,
            (["CPU:0", "CPU:1"], ["GPU:0", "GPU:1", "GPU:2"], ["CPU:0"]),
            ([], "CPU:0", ["CPU:0"] * 2, ["CPU:1", "CPU:0"], ["TPU:0"]),
        ),
        (
            forms.array,
            (np.ones((2, 3)), np.arange(3), [[1, 2], [3, 4.5]], []),
            (np.array([np.nan]), np.array(["1"]), np.array([1j]), [["1"]], [[1], [2, 3]], [True], [{}], 1.0, DEEP),
        ),
        (forms.any_array, (np.array([np.nan]), [math.inf]), (np.array([True]), np.array([b"1"]))),
        ([forms.number], ([], [1, 2]), ((1, 2), [1, "2"], {}, None)),
        ((forms.number, forms.text), ([1, "a"],), ([1], [1, "a", 2], ["a", 1])),
        ({"a": forms.number}, ({"a": 1},), ({}, {"a": "1"}, {"a": 1, "b": 2}, [])),
        ({"a": forms.number, str: forms.text}, ({"a": 1}, {"a": 1, "b": "c"}), ({"b": "c"}, {"a": 1, "b": 2})),
        (forms.either([forms.number], forms.nothing), ([1], None), (["1"], 0)),
        (forms.each_replica(forms.number), ([1, 2],), ([1], [], ["1", 2], None)),
    ],
)
def test_form(form, fits, others):
    asked = Question("q1", "t", ("a",), None, (Target("met", lambda answers, seed: True),), ())
    formed = forms.formed(asked, {"x": form})
    for value in fits:
        assert judge(formed, {"x": value}, 0).right, value
    for value in others:
        assert "another form" in judge(formed, {"x": value}, 0).targets[0].detail


# Probes: who claims to be a tensor


class LooksPlaced:
    device = "/job:localhost/replica:0/task:0/device:CPU:3"
    value = property(lambda self: self)


def test_only_a_frameworks_own_objects_have_a_device():
    import tensorflow as tf
    from keras import Variable

    class Own(Variable):
        pass

    with tf.device("CPU:1"):
        placed = [tf.constant(1.0), tf.Variable(1.0), Variable(1.0)]
    assert [state.device_of(value) for value in placed] == ["CPU:1"] * 3
    disguised = type("EagerTensor", (LooksPlaced,), {"__module__": "tensorflow.python.framework.ops"})
    for fake in (LooksPlaced(), disguised(), Own(1.0), np.ones(2), None):
        assert state.device_of(fake).startswith("no device")


def test_only_a_variable_of_keras_has_copies():
    import tensorflow as tf
    from keras import Variable

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = Variable([1.0, 2.0])
    assert [copy.tolist() for copy in state.copies_of(strategy, variable)] == [[1.0, 2.0]] * 2
    with pytest.raises(TypeError, match="a weight is a LooksPlaced"):
        state.copies_of(strategy, LooksPlaced())
