"""Exercise 12: what its questions on programs share. A check runs the program on several incidents, each a run.

Needs NumPy. Functions of a run are given what its two workers returned, the seed, and the run's number.
"""

import functools

import numpy as np

from course_lib.exercises.judges import forms
from course_lib.exercises.question import Target

CLOSE = 1e-5  # relative: 0.001%; the programs compute in float64
DIAGNOSIS = (forms.text, forms.text, forms.whole)
TASK, CAUSE, STEP = range(3)  # of a diagnosis


def diagnosed(wanted):
    """A target: (task, cause, step) of the notebook's own incident."""

    def holds(answers, seed):
        names = ("task", "cause", "step")
        wrong = [name for name, said, due in zip(names, answers["diagnosis"], wanted(), strict=True) if said != due]
        said = ", ".join(map(str, answers["diagnosis"]))
        return not wrong or f"of ({said}) the {' and the '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not right"

    return Target("the diagnosis of the notebook's run: task, cause and step", holds)


def said(place, differs):
    """A recogniser: differs(what stands at that place of its diagnosis)."""
    return lambda answers, seed: differs(answers["diagnosis"][place])


def other_task(wanted):
    """A recogniser: its diagnosis names the other worker."""
    return said(TASK, lambda task: task in {"worker 0", "worker 1"} - {wanted()[TASK]})


def other_cause(wanted):
    return said(CAUSE, lambda cause: cause != wanted()[CAUSE])


def hangs(answers, seed):
    """The program still stands still, as the broken one does: one worker is through, and the other waits."""
    return "No task made progress" in answers["stopped"]["error"] and "(data ended)" in answers["stopped"]["error"]


def unlike_sums(answers, seed):
    """The workers meet in one collective, each with a value of another shape."""
    return "Shape mismatch in the collective" in answers["stopped"]["error"]


def pairs(case, times):
    """The form of as many runs of two workers."""
    return ((case, case),) * times


def each_run(goal, holds, words):
    """A target: holds(run, seed, number) is true of every run; else the line that it gives, and words(seed, number)."""

    def judged(answers, seed):
        for number, run in enumerate(answers["runs"]):
            held = holds(run, seed, number)
            if held is not True:
                return f"{held}, {words(seed, number)}"
        return True

    return Target(goal, judged)


def in_every_run(fits, somewhere=lambda run, seed, number: True):
    """A recogniser: fits(run, seed, number) of every run, and somewhere(the same) of at least one."""

    def recognise(answers, seed):
        runs = [(run, seed, number) for number, run in enumerate(answers["runs"])]
        return all(fits(*one) for one in runs) and any(somewhere(*one) for one in runs)

    return recognise


def weights_of(run):
    return [np.array(worker["weights"], "float64") for worker in run]


def identical_and(wanted):
    """Of a run: the workers' weights are identical, and equal `wanted(seed, number)` to 0.001%."""

    def holds(run, seed, number):
        weights, due = weights_of(run), np.array(wanted(seed, number))
        if any(own.shape != due.shape for own in weights):
            return f"they are of the shapes {' and '.join(str(own.shape) for own in weights)}, not {due.shape}"
        if not all(np.isfinite(own).all() for own in weights):
            return "some are not finite"
        if apart := np.abs(weights[0] - weights[1]).max():
            return f"the workers' differ by up to {apart:.2g}"
        off = np.abs(weights[0] - due).max() / np.abs(due).max()
        return bool(off <= CLOSE) or f"they are off by {100 * off:,.3g}%"

    return holds


def close(run, wanted):
    """Whether every worker has these weights."""
    same = functools.partial(np.allclose, b=wanted, rtol=CLOSE, equal_nan=True)
    return all(own.shape == np.shape(wanted) and same(own) for own in weights_of(run))
