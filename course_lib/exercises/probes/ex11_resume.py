"""Probe of exercise 11, q3: a resume. Needs NumPy. The inputs are functions of the seed."""

import copy
import json

import numpy as np

from course_lib.exercises.ask import Stopped, in_one_line
from course_lib.exercises.given.trainer import Trainer
from course_lib.exercises.probes.new_process import memory_of

AFTER = 40  # micro-batches that a run goes on for
SAVED_AS, RESUMED_AS = 2, 1  # the runs' processes


def kills(seed: int) -> list[int]:
    """Micro-batches after which q3's runs are saved: the first, and some of the second epoch or the third.

    Of these each place in a group is one: after its first micro-batch, its second and its last.
    """
    rng = np.random.default_rng(seed)
    return [1, *(Trainer.GROUP * int(group) + 1 + place for place, group in enumerate(rng.integers(5, 11, size=3)))]


def probe_resume(names, seed):
    """Losses and state of the runs that were saved and of those that were resumed, after each kill.

    All are saved before one is resumed, in what another process would find in the learner's module.
    """
    elsewhere = memory_of(names["save"], names["restore"])
    runs = [_saved(names["save"], seed, before) for before in kills(seed)]
    return {"kills": [_resumed(names["restore"], seed, elsewhere, *run) for run in runs]}


def _saved(save, seed, before):
    """What was saved, as it was written then, how the run went on, and whether that changed what was saved."""
    run = Trainer(seed, SAVED_AS)
    for _ in range(before):
        run.step()
    saved = save(run)
    try:
        written = _written(saved)
    except (TypeError, ValueError) as error:
        line = f"what save returns cannot be written to a file ({error!s:.80}): use numbers, text, bytes, lists, dicts"
        line += " with text as keys, NumPy arrays of numbers"
        raise Stopped("raised", line, line) from None
    continued = [run.step() for _ in range(AFTER)]
    return saved, written, continued, _stays(saved, written)


def _resumed(restore, seed, elsewhere, saved, written, continued, kept):
    kept = [kept, _stays(saved, written)]  # while its run went on, and until the last run was saved
    read = copy.deepcopy(saved)  # as if from a file
    written, fresh = _written(read), Trainer(seed, RESUMED_AS)
    try:
        with elsewhere():
            run = restore(fresh, read)
    except Exception as error:
        if not _restores(restore, seed, saved):
            raise
        said = in_one_line(type(error).__name__, str(error))
        line = f"restore works in the process that saved; in another one it raises {said}"
        raise Stopped("raised", line, line) from None
    losses = [run.step() for _ in range(AFTER)]
    return {
        "continued": continued,
        "resumed": losses,
        "weights": np.array(run.weights),
        "updates": int(run.updates),
        "itself": run is fresh,
        "kept": [*kept, _stays(read, written)],
    }


def _restores(restore, seed, saved) -> bool:
    try:
        restore(Trainer(seed, RESUMED_AS), copy.deepcopy(saved))
    except Exception:
        return False
    return True


def _stays(saved, written: str) -> bool:
    try:
        return _written(saved) == written
    except (TypeError, ValueError):
        return False


def _written(saved) -> str:
    return json.dumps(saved, default=_as_json)


def _as_json(value) -> list | int | float | str:
    if isinstance(value, bytes):
        return value.hex()
    if not isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(f"it holds a {type(value).__name__}")
    if value.dtype == object:
        raise TypeError("it holds an array of objects")
    return value.tolist()
