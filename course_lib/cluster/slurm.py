"""A job as a Slurm batch script: the same program, on the nodes that Slurm gives; taught in notebooks/03.

Writing needs nothing; `submit` needs Slurm's commands. FOLDER must be seen
from every node, and so must the Python environment.
"""

import json
import math
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from course_lib.cluster.job import Job
from course_lib.cluster.outcome import Exit, RunFailed, first_cause
from course_lib.errors import CourseError

SCRIPT = """\
#!/bin/bash
{directives}

unset TF_CONFIG  # of the shell that submits this: it would make every task the same one
export SRUN_CPUS_PER_TASK={cpus}  # srun does not take it from sbatch, since Slurm 22.05
rm -f {folder}/results/*.pickle {folder}/reports/*/*.jsonl

# One address per task, in the order of ranks, as Slurm itself reaches the nodes.
export COURSE_HOSTS=$(srun bash -c 'echo "$SLURM_PROCID" "$(scontrol show node "$SLURMD_NODENAME" |
  grep -o "NodeAddr=[^ ]*" | cut -d= -f2)"' | sort -n | cut -d" " -f2 | paste -sd,)
# Ports of this job alone, also where jobs share a node.
export COURSE_FIRST_PORT=${{COURSE_FIRST_PORT:-$((20000 + SLURM_JOB_ID % 100 * 100))}}

# A lost task ends the others, because a collective cannot be rejoined; the next attempt goes on from the checkpoint.
for attempt in $(seq 0 {restarts}); do
  export COURSE_ATTEMPT=$((SLURM_RESTART_COUNT + attempt))
  srun --kill-on-bad-exit=1 --open-mode=append --output={folder}/task-%t.log \
{python} -u -m course_lib.cluster {folder} && exit 0
done
exit 1
"""


def write_batch(job: Job, folder: Path, *, python: str = sys.executable, options: Sequence[str] = ()) -> Path:
    """Write job.json and batch.sh, for `sbatch FOLDER/batch.sh`; every task's log and result come into FOLDER.

    folder   made when missing; a second submission goes on from its checkpoints
    python   the interpreter on the nodes
    options  more of sbatch's, such as "--partition=gpu"
    Returns  the script's path
    Raises   CourseError when the folder cannot be written or the job needs a local link
    """
    if job.link:
        raise CourseError(
            "a link of limited rate is for local runs; under Slurm the network is the cluster's: leave link out."
        )
    folder, resources = Path(folder).resolve(), job.resources
    cpus = resources.cpus or 1
    own = [
        f"--job-name={job.program.function}",
        f"--output={folder}/batch.log",
        f"--ntasks={len(job.tasks)}",
        f"--cpus-per-task={cpus}",
        f"--mem-per-cpu={math.ceil(resources.memory_gib * 1024 / cpus)}M",
        *([f"--gpus-per-task={resources.gpus}"] if resources.gpus else []),
        f"--time={math.ceil(resources.limit_seconds / 60)}",
        "--requeue" if job.restarts else "--no-requeue",  # after the loss of a node
    ]
    script = SCRIPT.format(
        directives="\n".join(f"#SBATCH {option}" for option in (*map(shlex.quote, own), *options)),
        cpus=cpus,
        restarts=job.restarts,
        folder=shlex.quote(str(folder)),
        python=shlex.quote(python),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.json").write_text(job.as_json())
        (folder / "batch.sh").write_text(script)
    except OSError as error:
        raise CourseError(
            f"{folder} cannot be written ({error.strerror}): name a folder of yours that every node sees."
        ) from None
    return folder / "batch.sh"


def submit(script: Path, *, wait: bool = False) -> int:
    """Hand a script to Slurm; return the job's number.

    wait    until the job has ended, well or not
    Raises  CourseError when Slurm is missing or refuses; when waited for and the job failed,
            RunFailed, with the failing task's traceback if it wrote one
    """
    if shutil.which("sbatch") is None:
        raise CourseError(
            "Slurm is not here (no sbatch): copy the folder to a machine of the cluster and run "
            "`sbatch batch.sh` there."
        )
    number, went_well = hand_over(script, *(["--wait"] if wait else []))
    if not went_well:
        unknown = f"Slurm's job {number} failed: read batch.log and task-*.log in {script.parent}"
        raise _failure(script.parent) or RunFailed(unknown, None, (), {})
    return number


def hand_over(script: Path, *options: str) -> tuple[int, bool]:
    """Call sbatch; the job's number, and after a wait whether it went well. Raises CourseError when refused."""
    done = subprocess.run(["sbatch", "--parsable", *options, str(script)], capture_output=True, text=True)
    numbers = re.findall(r"^(\d+)(?:;.*)?$", done.stdout, re.MULTILINE)  # a site's own sbatch may greet before it
    if not numbers:
        said = ((done.stderr or done.stdout).strip().splitlines() or ["no message"])[-1]
        raise CourseError(
            f"Slurm took no job ({said}): is this a machine of the cluster, and does the script's partition exist?"
        )
    return int(numbers[-1]), done.returncode == 0


def read_results(job: Job, folder: Path) -> dict[str, object]:
    """What each program returned, as in `Outcome.results`; only from a folder that you trust, because it is unpickled.

    Raises  RunFailed when a task failed; CourseError when one has left no result
    """
    paths = {name: Path(folder) / "results" / f"{name}.pickle" for name in job.programs}
    if missing := [name for name, path in paths.items() if not path.exists()]:
        raise _failure(folder) or CourseError(
            f"{folder} has no result of {', '.join(missing)}: the job waits, runs, "
            f"or its batch.log and task-*.log there say why it failed."
        )
    return {name: pickle.loads(path.read_bytes()) for name, path in paths.items()}


def _failure(folder: Path) -> RunFailed | None:
    """Why the last attempt failed, if its tasks reported it."""
    reported: dict[int, list[Path]] = {}
    for path in sorted(Path(folder).glob("reports/attempt */*.jsonl"), key=lambda path: path.stat().st_mtime):
        reported.setdefault(int(path.parent.name.split()[1]), []).append(path)
    attempt = max(reported, default=0)
    lasts = [json.loads(lines[-1]) for path in reported.get(attempt, []) if (lines := path.read_text().splitlines())]
    exits = [
        Exit(last["task"], attempt, 1, False, error=last["error"], message=last["message"], traceback=last["traceback"])
        for last in lasts
        if last["event"] == "failed"
    ]
    cause = first_cause(exits)
    return cause and RunFailed(f"{cause} (all tasks' lines are in {folder}/task-*.log)", cause, exits, {})
