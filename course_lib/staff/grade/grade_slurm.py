"""A class graded by a Slurm array: each task takes its share, a last job merges. Needs Slurm to submit.

No task waits for another, and none shares a file with another but the folder of results, where each result is
written whole. The merge is the ordinary command: it grades what no task has left a result of, and writes the reports.
"""

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from course_lib.cluster.slurm import hand_over
from course_lib.errors import CourseError
from course_lib.staff.grade.results import write_whole

SCRIPT = """#!/bin/bash
{directives}
exec {command}
"""


def write(
    folder: Path, call: Sequence[str], tasks: int, jobs: int, memory_gib: float, options: Sequence[str] = ()
) -> tuple[Path, Path]:
    """Write array.sh and merge.sh, for sbatch.

    folder      of the results, seen by every node; logs come there too
    call        the arguments of `course grade`, with full paths
    tasks       of the array; each grades about an equal share
    jobs       submissions that one task grades at a time: cores and memory are asked for accordingly
    memory_gib  of one submission
    options     more of sbatch's, such as "--partition=cpu"
    Returns     both scripts' paths
    """
    (folder / "logs").mkdir(parents=True, exist_ok=True)  # Slurm makes no folder for a log
    command = shlex.join([sys.executable, "-m", "course_lib.cli", "grade", *call])
    memory = f"--mem={round(jobs * memory_gib * 1024)}M"
    asked = ["--ntasks=1", f"--cpus-per-task={jobs}", memory, *options]
    array = ["--job-name=course-grade", f"--array=0-{tasks - 1}", f"--output={folder}/logs/share-%a.log", *asked]
    merge = ["--job-name=course-merge", f"--output={folder}/logs/merge.log", *asked]
    share = f'{command} --share "$SLURM_ARRAY_TASK_ID/{tasks}"'
    for name, settings, line in (("array.sh", array, share), ("merge.sh", merge, command)):
        directives = "\n".join(f"#SBATCH {shlex.quote(setting)}" for setting in settings)
        write_whole(folder / name, SCRIPT.format(directives=directives, command=line))
    return folder / "array.sh", folder / "merge.sh"


def call_of(arguments: argparse.Namespace, out: Path) -> list[str]:
    """This very call as a task makes it: full paths, and nothing of Slurm."""
    call = [*(str(path.resolve()) for path in arguments.path), "--out", str(out), "--jobs", str(arguments.jobs)]
    call += ["--secret", str((arguments.secret or out / "secret").resolve())]
    for form in arguments.export:
        call += ["--export", form]
    for name in ("cell_seconds", "seconds", "memory_gib"):
        call += [f"--{name.replace('_', '-')}", f"{getattr(arguments, name):g}"]
    if arguments.run_submissions_as_me:
        call.append("--run-submissions-as-me")
    return call


def submit(array: Path, merge: Path, wait: bool = False) -> tuple[int, int]:
    """Hand both to Slurm, the merge to run when every task of the array has ended, well or not.

    wait     until the merge has ended
    Returns  both jobs' numbers
    Raises   CourseError when Slurm is missing or refuses, and when the merge that was waited for fails
    """
    if shutil.which("sbatch") is None:
        raise CourseError(f"Slurm is not here (no sbatch): on the cluster run `sbatch {array}`, then `sbatch {merge}`")
    first, _ = hand_over(array)
    second, went_well = hand_over(merge, f"--dependency=afterany:{first}", *(["--wait"] if wait else []))
    if not went_well:
        raise CourseError(f"Slurm's job {second} failed: read {merge.parent}/logs")
    return first, second
