"""Checks that run a learner's program on real workers: every bad program gets one verdict, and leaves nothing."""

import psutil
import pytest

from course_lib.cluster.worker_program import WorkerProgram
from course_lib.exercises import judges
from course_lib.exercises.ask import Stopped, ask
from course_lib.exercises.judge import judge
from course_lib.exercises.probes import ex04, workers
from course_lib.exercises.question import Mistake, Question


def answer(task):
    return {"index": task.index}


# As a notebook's function travels.
BROKEN = WorkerProgram(
    "broken",
    file="broken.py",
    text="""\
def broken(task):
    settings = {"rate": 0.1}
    return settings["epochs"]
""",
)


def returns_nothing(task):
    pass


def hangs(task):
    import threading

    task.report(step=1)
    threading.Event().wait()


def killed_once(task):
    import threading

    task.report(ready=True)
    if task.attempt == 0:
        threading.Event().wait()
    return {"attempt": task.attempt}


def fails_at_first(task, batches, **settings):
    if task.attempt == 0:
        raise KeyError(len(batches))
    return {"counted": 0}


def leaves_at_first(task, **settings):
    import os

    if task.attempt == 0:
        os._exit(3)
    return {"counted": 0}


# The way that the hint of the exercise's "one graph" names. A second array of sums, and one of the last turn, are held.
ONE_TURN_AT_A_TIME = """\
def big_step(model, optimizer, loss, x, y, micro_batch):
    import tensorflow as tf

    variables = model.trainable_variables

    @tf.function
    def step(x, y):
        rows = tf.shape(y)[0]
        sums, total = [tf.zeros(variable.shape) for variable in variables], tf.constant(0.0)
        for start in tf.range(0, rows, micro_batch):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)
            stop = tf.minimum(start + micro_batch, rows)
            with tf.GradientTape() as tape:
                share = tf.cast(stop - start, tf.float32) / tf.cast(rows, tf.float32)
                part = share * loss(y[start:stop], model(x[start:stop], training=True))
            sums = [one + other for one, other in zip(sums, tape.gradient(part, variables))]
            total += part
        optimizer.apply(sums, variables)
        return total

    return step(x, y)
"""
ALL_FORWARD_FIRST = """\
def big_step(model, optimizer, loss, x, y, micro_batch):
    import tensorflow as tf

    @tf.function
    def step(x, y):
        rows = tf.shape(y)[0]
        with tf.GradientTape() as tape:
            total = tf.constant(0.0)
            for start in tf.range(0, rows, micro_batch):
                tf.autograph.experimental.set_loop_options(parallel_iterations=1)
                stop = tf.minimum(start + micro_batch, rows)
                share = tf.cast(stop - start, tf.float32) / tf.cast(rows, tf.float32)
                total += share * loss(y[start:stop], model(x[start:stop], training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(total, variables), variables)
        return total

    return step(x, y)
"""
EMPTY_PART = """\
def big_step(model, optimizer, loss, x, y, micro_batch):
    import tensorflow as tf

    variables, total = model.trainable_variables, 0.0
    sums = [tf.zeros(variable.shape) for variable in variables]
    for at in range(len(x) // micro_batch + 1):
        part = slice(at * micro_batch, (at + 1) * micro_batch)
        with tf.GradientTape() as tape:
            value = len(x[part]) / len(x) * loss(y[part], model(x[part], training=True))
        sums, total = [s + g for s, g in zip(sums, tape.gradient(value, variables))], total + value
    optimizer.apply(sums, variables)
    return total
"""


def big_step_verdict(text: str):
    (question,) = (one for one in judges.questions("08_gradient_accumulation") if one.name == "q3")
    big_step = WorkerProgram("big_step", text=text)
    return judge(question, ask(question.probe, ("big_step",), {"big_step": big_step}, 0), 0)


def test_a_loop_in_a_graph_that_takes_one_turn_at_a_time_is_right():
    assert big_step_verdict(ONE_TURN_AT_A_TIME).right


def test_a_loop_in_a_graph_that_takes_several_turns_at_once_is_named():
    """As it does by itself: the number of turns is in the graph, whatever memory a run needs by chance."""
    (one_turn,) = (line for line in ONE_TURN_AT_A_TIME.splitlines(keepends=True) if "set_loop_options" in line)
    verdict = big_step_verdict(ONE_TURN_AT_A_TIME.replace(one_turn, ""))
    assert verdict.mistake == "one graph" and "10 turns of the loop may run at once" in verdict.message


def test_a_loop_in_a_graph_that_keeps_all_activations_is_not_called_several_turns():
    assert big_step_verdict(ALL_FORWARD_FIRST).mistake == "too much kept"


def test_a_micro_batch_without_rows_is_refused():
    assert "with 6 rows and micro_batch=2 the loss or a weight is not finite" in big_step_verdict(EMPTY_PART).problem


def kill_worker_1(running):
    running.wait_report("worker 1", ready=True)
    running.kill("worker 1")


def stopped(program, *disturb) -> dict:
    def probe(names, seed):
        return workers.run(workers.job(names["program"]), "make_job", *disturb)

    return ask(probe, ("program",), {"program": program}, 0)["stopped"]


def test_the_outcome_of_a_good_program_comes_back():
    assert workers.run(workers.job(answer), "make_job").results == {"worker 0": {"index": 0}, "worker 1": {"index": 1}}


def test_an_exception_in_a_worker_is_reported_with_the_programs_own_line():
    end = stopped(BROKEN)
    assert end["kind"] == "raised"
    assert "failed: KeyError: 'epochs'" in end["line"] and "\n" not in end["line"]
    assert end["line"].endswith('in broken, line 3 of the program: return settings["epochs"]')


def test_a_program_that_returns_nothing_is_reported():
    assert stopped(returns_nothing) == {
        "kind": "nothing",
        "line": "returns_nothing returned nothing; does it end with a `return`?",
        "error": "",
    }


def test_a_program_that_never_ends_is_stopped_and_leaves_no_process(monkeypatch):
    monkeypatch.setattr(workers, "LIMIT_SECONDS", 5)
    before = set(psutil.Process().children(recursive=True))  # other tests' helpers
    end = stopped(hangs)
    assert end["kind"] == "raised" and "5 s" in end["line"] and "\n" not in end["line"]
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_check_may_kill_a_task_of_the_running_cluster():
    outcome = workers.run(workers.job(killed_once, restarts=1), "make_job", kill_worker_1)
    assert outcome.restarts == 1 and outcome.results["worker 1"] == {"attempt": 1}


def test_a_kill_whose_moment_never_comes_is_stopped_and_leaves_no_process(monkeypatch):
    monkeypatch.setattr(workers, "LIMIT_SECONDS", 5)
    before = set(psutil.Process().children(recursive=True))
    end = stopped(hangs, kill_worker_1)
    assert end["kind"] == "raised" and "5 s" in end["line"] and "\n" not in end["line"]
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(
    "program, line",
    [
        (fails_at_first, f"chief 0 failed: KeyError: {ex04.RUN}"),
        (leaves_at_first, "chief 0 ended with exit code 3 before its program returned"),
    ],
)
def test_a_program_that_ended_before_its_kill_is_told_how(program, line):
    assert ask(ex04.probe_recovery, ("train_through",), {"train_through": program}, 0)["stopped"]["line"] == line


def test_what_is_no_job_is_refused_before_anything_starts():
    with pytest.raises(Stopped, match="make_job returns a dict, and a cluster.Job is expected"):
        workers.run({}, "make_job")


def test_a_program_that_needs_the_notebooks_names_is_refused_before_anything_starts():
    with pytest.raises(Stopped, match="a program is a function made with def"):
        workers.job(lambda task: 1)


def test_a_check_that_takes_long_may_not_start_more_to_know_a_mistake():
    mistake = Mistake("slow", "what", "where", wrong=answer)
    with pytest.raises(ValueError, match="needs a `recognise`"):
        Question("q1", "t", ("train",), lambda names, seed: {}, (), (mistake,), takes_long=True)
