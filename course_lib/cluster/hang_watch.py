"""Has any task of a running job made progress? If none has, what does each one look like? The supervisor asks."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import psutil

from course_lib.cluster.task_process import TaskProcess
from course_lib.hangs import Evidence, HangReport, evidence, recorder
from course_lib.hangs.stillness import Stillness


async def watch_for_hangs(supervisor) -> None:
    """End a run that stands still, or start its tasks again while the job allows it."""
    job, still = supervisor.job, Stillness(supervisor.job.hang_seconds)
    while not supervisor.over.done():
        await asyncio.sleep(still.pause)
        async with supervisor.changing:
            tasks = supervisor.tasks
            progress = _progress(tasks, supervisor.folder), supervisor.said
            if supervisor.over.done() or not still.hangs(progress, _cpu_seconds(tasks)):
                continue
            looks = await asyncio.to_thread(_gather, tasks, supervisor.folder, still.busy)
            found = HangReport(looks, job.hang_seconds)
            supervisor.say("hang", report=found.as_json())
            if supervisor.restarts == job.restarts:
                supervisor.finish("hung", found.summary)
            else:
                supervisor.restarts += 1
                supervisor.say("restarting")
                await supervisor.replace(job.tasks)


def different_calls(supervisor) -> HangReport | None:
    """Where a task failed: the first call with collectives that is not the same on all, if there is one."""
    found = HangReport(_gather(supervisor.tasks, supervisor.folder, {}), 0)
    return found if found.diagnosis.cause in ("other order", "entered alone") else None


def _progress(tasks: Mapping[str, TaskProcess], folder: Path) -> list[tuple]:
    """What changes while work goes on: starts, ends, and what each task notes."""
    return [
        (name, task.attempt, task.code, task.returned, recorder.notes(recorder.path_of(folder, name)))
        for name, task in tasks.items()
    ]


def _cpu_seconds(tasks: Mapping[str, TaskProcess]) -> dict[str, float]:
    used = {}
    for name, task in tasks.items():
        try:
            times = psutil.Process(task.process.pid).cpu_times()
            used[name] = times.user + times.system
        except psutil.Error:  # it has ended
            continue
    return used


def _gather(tasks: Mapping[str, TaskProcess], folder: Path, busy: Mapping[str, float]) -> tuple[Evidence, ...]:
    """What each task looks like; asks each process for its stacks."""
    return tuple(
        evidence.gather(
            folder,
            name,
            None if task.code is not None else task.process.pid,
            "returned" if task.returned else "running",
            busy.get(name),
        )
        for name, task in tasks.items()
    )
