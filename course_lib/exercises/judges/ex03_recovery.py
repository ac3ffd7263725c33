"""The run of exercise 03's q4 without a kill, in NumPy, and what tells its known mistakes from each other.

Needs NumPy, and TensorFlow to know the order of rows.
"""

import functools
import math
from itertools import chain, pairwise

import numpy as np

from course_lib.exercises.probes import ex03 as probes

LAST_STEP = probes.EPOCHS * probes.STEPS_PER_EPOCH


def kills(seed):
    """(attempt that it ends, step after which it comes, last step whose save was due)."""
    for attempt, step in enumerate(probes.recovery_settings(seed)["dies_after"]):
        yield attempt, step, step // probes.SAVE_EVERY * probes.SAVE_EVERY


def saved_step(seed):
    """At the first kill."""
    return next(kills(seed))[-1]


@functools.lru_cache(maxsize=8)
def undisturbed(seed):
    """The run without a kill, in NumPy: its batches (x, y); each step's loss; weights and momentum by step."""
    from course_lib import data

    settings = probes.recovery_settings(seed)
    x, y = np.float32(settings["x"]), np.float32(settings["y"])
    epochs = (data.epoch_batches(x, y, settings["global_batch"], epoch) for epoch in range(probes.EPOCHS))
    batches = [tuple(part.numpy().astype("float64") for part in batch) for batch in chain(*epochs)]
    losses, states = [], [(np.float64(settings["first_weights"]), np.zeros(3))]
    for batch in batches:
        loss, state = _momentum_step(states[-1], batch)
        losses.append(loss)
        states.append(state)
    return batches, losses, states


def _momentum_step(state, batch):
    (weights, momentum), (x, y) = state, batch
    errors = x @ weights - y
    momentum = 0.9 * momentum - 0.02 * 2 * x.T @ errors / len(y)
    return np.mean(errors**2), (weights + momentum, momentum)


def reported(answers, attempt, task="worker 0"):
    """step -> loss, as a task reported them in one attempt."""
    return {step: loss for name, number, step, loss in answers["reports"] if (name, number) == (task, attempt)}


def first_steps(answers, seed):
    """For each kill: the step that it came after, the last saved one, the step that the next attempt began with."""
    return [(died, saved, min(reported(answers, attempt + 1))) for attempt, died, saved in kills(seed)]


def goes_on(answers, seed, first, state, batch):
    """Whether the second attempt's first step is number `first`, with this state and batch of the undisturbed run."""
    return min(reported(answers, attempt=1)) == first and _takes(answers, seed, first, state, batch)


def _takes(answers, seed, step, state, batch):
    """Whether a step of the second attempt has this state and batch of the undisturbed run."""
    batches, _, states = undisturbed(seed)
    loss, _ = _momentum_step(states[state], batches[batch])
    return math.isclose(reported(answers, attempt=1)[step], loss, rel_tol=1e-4)


def epoch_again(answers, seed):
    saved, steps = saved_step(seed), probes.STEPS_PER_EPOCH
    start = saved // steps * steps
    return any(goes_on(answers, seed, first, saved, start) for first in (saved + 1, start + 1))


def fresh_momentum(answers, seed):
    """Momentum shows in the second step after the save."""
    saved, (batches, _, states) = saved_step(seed), undisturbed(seed)
    _, state = _momentum_step((states[saved][0], np.zeros(3)), batches[saved])
    loss, _ = _momentum_step(state, batches[saved + 1])
    return math.isclose(reported(answers, attempt=1)[saved + 2], loss, rel_tol=1e-4)


def skips_in_every_epoch(answers, seed):
    saved, steps = saved_step(seed), probes.STEPS_PER_EPOCH
    next_epoch = (saved // steps + 1) * steps
    return _takes(answers, seed, next_epoch + 1, state=next_epoch, batch=next_epoch + saved % steps)


def in_order(answers, seed):
    """Steps that worker 0 reported before the first kill, in that order; whether their losses are the right ones."""
    reports = [(step, loss) for name, attempt, step, loss in answers["reports"] if (name, attempt) == ("worker 0", 0)]
    steps, losses = zip(*reports)
    return steps, np.allclose(losses, undisturbed(seed)[1][: len(losses)], rtol=1e-4)


def other_order(answers, seed):
    return not in_order(answers, seed)[1]


def numbered_otherwise(answers, seed):
    steps, right = in_order(answers, seed)
    return right and steps != tuple(range(1, len(steps) + 1))


def after_the_last(answers, seed, due):
    """Whether each attempt goes on after the last step before the kill of which due(step) is true."""
    return all(
        first == max([step for step in range(died + 1) if step == 0 or due(step)]) + 1
        for died, _, first in first_steps(answers, seed)
    )


def saved_once_an_epoch(answers, seed):
    _, _, first = first_steps(answers, seed)[0]
    once = after_the_last(answers, seed, lambda step: step % probes.STEPS_PER_EPOCH == 0)
    return once and goes_on(answers, seed, first, first - 1, first - 1)


def cut_before_the_save(answers, seed):
    """A save that was due is missing exactly where the kill came at its step."""
    every = probes.SAVE_EVERY
    return all(first == (died - 1) // every * every + 1 for died, _, first in first_steps(answers, seed))


def due_within_the_epoch(answers, seed):
    """Saves come by the step's number in its epoch, counted from 1 or from 0."""
    steps, every = probes.STEPS_PER_EPOCH, probes.SAVE_EVERY
    from_1 = after_the_last(answers, seed, lambda step: ((step - 1) % steps + 1) % every == 0)
    return from_1 or after_the_last(answers, seed, lambda step: (step - 1) % steps % every == 0)


def saved_by_the_first_attempt(answers, seed):
    return {first for _, _, first in first_steps(answers, seed)} == {saved_step(seed) + 1}


def restored_once(answers, seed):
    """The second attempt goes on after the last save, and all after it begin with step 1."""
    (_, saved, second), *later = first_steps(answers, seed)
    return second == saved + 1 and {first for _, _, first in later} == {1}


def cut_before_the_report(answers, seed):
    """Of each killed worker's attempt the last reported step is the one before the kill's, counted from 1."""
    victim = probes.recovery_settings(seed)["victim"]
    return in_order(answers, seed)[0][0] == 1 and all(
        max(reported(answers, attempt, victim)) == died - 1 for attempt, died, _ in kills(seed)
    )


def cut_once(answers, seed):
    """There was one restart, and the second attempt reports the last step."""
    return answers["restarts"] == 1 and LAST_STEP in reported(answers, attempt=1)


def last_as_text(answers, seed):
    """Each attempt goes on after the save whose number sorts last as text, which is not always the last one."""
    steps = [(saved, first - 1) for _, saved, first in first_steps(answers, seed)]
    saves = [[str(step) for step in range(probes.SAVE_EVERY, saved + 1, probes.SAVE_EVERY)] for saved, _ in steps]
    return all(first == int(max(texts)) for (_, first), texts in zip(steps, saves)) and any(
        one != two for one, two in steps
    )


def from_epoch_0(answers, seed):
    saved = saved_step(seed)
    return any(goes_on(answers, seed, saved + 1, saved, batch) for batch in (saved % probes.STEPS_PER_EPOCH, 0))


def next_epoch(answers, seed):
    saved, steps = saved_step(seed), probes.STEPS_PER_EPOCH
    return goes_on(answers, seed, saved + 1, saved, (saved // steps + 1) * steps)


def nothing_left(answers, seed):
    """The first attempt ends after its first epoch, or the second one reports no step and ends with the saved state."""
    updates = {worker["updates"] for worker in answers["workers"]}
    in_the_second = answers["restarts"] == 1 and not reported(answers, 1) and updates == {saved_step(seed)}
    return in_the_second or answers["restarts"] == 0 and updates == {probes.STEPS_PER_EPOCH}


def computed_again_in_silence(answers, seed):
    """Each attempt reports from the right step on, and before its first report it made the updates of all steps."""
    if any(first != saved + 1 for _, saved, first in first_steps(answers, seed)):
        return False
    made = zip(answers["reports"], answers["updates_made"], strict=True)
    later = [(step, updates) for (_, attempt, step, _), updates in made if attempt]
    return bool(later) and all(step == updates for step, updates in later)


def last_attempts_save_alone(answers, seed):
    """An attempt goes on after the save of the one before it, and with step 1 where that one saved nothing."""
    before, found = 0, []
    for _, saved, first in first_steps(answers, seed):
        found.append(first == (saved + 1 if saved > before else 1))
        before = saved
    return all(found) and any(one == other for (*_, one), (*_, other) in pairwise(kills(seed)))
