"""A killed run and its recovery, report by report, as recorded. Needs matplotlib when shown; used in notebooks/03.

The record is of lesson 03's own program on two worker processes; tests/record_killed_run.py makes it.
"""

import functools
import json
from pathlib import Path

from course_lib.views.controls import Range
from course_lib.views.explorer import View, explorer

FILE = Path(__file__).with_name("killed_run.json")


@functools.cache
def recorded() -> dict:
    """killed: a task; save_every: steps; reports: (task, attempt, step, loss), in the order in which they came."""
    return json.loads(FILE.read_text())


@explorer(reports=Range("reports so far", 0, lambda values: len(recorded()["reports"]), plays=True))
def recovery(reports: int = 60) -> View:
    """What each of two workers had done when so many of their reports had come.

    reports  0 to all
    """
    from course_lib import show

    record = recorded()
    every, killed = record["reports"], record["killed"]
    tasks, saved = sorted({task for task, *_ in every}), record["save_every"]
    longest = max(sum(task == one for one, *_ in every) for task in tasks)
    done = {task: [(attempt, step) for one, attempt, step, _ in every[:reports] if one == task] for task in tasks}
    losses = {task: next((loss for one, *_, loss in reversed(every[:reports]) if one == task), None) for task in tasks}
    twice = {task: len(pairs) - len({step for _, step in pairs}) for task, pairs in done.items()}
    steps = {task: pairs[-1][1] if pairs else 0 for task, pairs in done.items()}
    last = max(step for _, _, step, _ in every)
    saves = list(range(saved, last + 1, saved))
    died = max(step for task, attempt, step, _ in every if task == killed and not attempt)
    again = any(attempt for pairs in done.values() for attempt, _ in pairs)
    reached = max(steps.values())
    if again:
        begun = min(step for _, attempt, step, _ in every if attempt)
        repeated = sum(twice.values())
        caption = (
            f"After {reports} reports: {killed} was killed after its step {died}, and no sum can do without "
            f"it: both began again with step {begun}, after the last save. Done twice so far: {repeated} steps. "
            f"They are at step {reached} of {last}."
        )
    else:
        kept = max([step for step in saves if step <= reached], default=0)
        caption = (
            f"After {reports} reports both workers train, at step {reached} of {last}; what they would lose now is "
            f"what came after {f'the save of step {kept}' if kept else 'their start'}."
        )
    rows = [
        [
            task,
            f"{done[task][-1][0] + 1}" if done[task] else "1",
            f"{steps[task]}",
            f"{twice[task]}",
            _loss(losses[task]),
        ]
        for task in tasks
    ]
    headers = ("", "process", "step", "done twice", "loss of the step")
    return View(show.restarts(done, saves, caption, longest), headers, rows)


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
