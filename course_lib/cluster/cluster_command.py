"""`course cluster`: run a job here, or write it for Slurm or Kubernetes. Used by cli.py."""

import argparse
import asyncio
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from course_lib.cluster import kubernetes, slurm
from course_lib.cluster.job import FRAMEWORKS, Job, Resources
from course_lib.cluster.local import run
from course_lib.cluster.machine_check import MachineCheck
from course_lib.cluster.outcome import RunFailed
from course_lib.cluster.worker_program import name_and_value, search_current_folder
from course_lib.errors import CourseError
from course_lib.hangs import HangReport

OF_THE_JOB = ("workers", "parameter_servers", "evaluator", "framework", "restarts", "hang_seconds")


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Give a parser the three ways of running a job."""
    ways = parser.add_subparsers(dest="way", required=True, metavar="WAY")

    def way(name: str, act, example: str) -> argparse.ArgumentParser:
        added = ways.add_parser(
            name, help=act.__doc__, description=act.__doc__, epilog=f"Example: course cluster {name} {example}"
        )
        added.set_defaults(run=act)
        _add_job(added)
        return added

    local = way("run", run_here, "train.py:train --workers 2 --argument epochs=2")
    local.add_argument(
        "--folder", type=Path, help="keep logs, results and checkpoints there, and go on from them the next time"
    )
    local.add_argument("--json", action="store_true", help="print JSON for a program, and the tasks' lines to stderr")

    machines = ways.add_parser(
        "check",
        help=check_machines.__doc__,
        description=check_machines.__doc__,
        epilog="Example: course cluster check --config tf_config.json --folder /shared",
    )
    machines.set_defaults(run=check_machines)
    machines.add_argument("--config", help="this machine's TF_CONFIG, or a file with it; by default the variable's")
    machines.add_argument("--folder", type=Path, help="a folder that all machines should see")
    machines.add_argument("--seconds", type=float, default=20.0, help="how long to wait for the other machines")
    machines.add_argument("--json", action="store_true", help="print JSON for a program")

    batch = way("slurm", write_for_slurm, "train.py:train --workers 2 --folder /shared/run-1 --submit")
    batch.add_argument("--folder", type=Path, required=True, help="every node must see it")
    batch.add_argument(
        "--option", action="append", default=[], help="one of sbatch's, such as --option=--partition=gpu; repeat it"
    )
    batch.add_argument("--submit", action="store_true", help="hand the script to sbatch")
    batch.add_argument("--wait", action="store_true", help="submit it, wait for its end, and print the results")
    batch.add_argument("--json", action="store_true", help="print JSON for a program")

    pods = way(
        "kubernetes",
        print_for_kubernetes,
        "train.py:train --name digits --image REGISTRY/IMAGE --claim CLAIM | kubectl apply -f -",
    )
    pods.add_argument("--name", required=True, help="of the Job, its Service and its ConfigMap")
    pods.add_argument("--image", required=True, help="holds this package and its framework")
    pods.add_argument(
        "--claim",
        help="a PersistentVolumeClaim that all pods can write; without it checkpoints and results go with the pods",
    )


def run_here(arguments: argparse.Namespace) -> int:
    """Run a job in processes on this machine, and print each line with its task's name."""
    lines = sys.stderr if arguments.json else sys.stdout
    try:
        outcome = run(_job(arguments), folder=arguments.folder, show=lambda line: print(line, file=lines, flush=True))
    except RunFailed as failed:
        _write_reports(failed.hangs, arguments.folder)
        return _say_why(failed)
    _write_reports(outcome.hangs, arguments.folder)
    return _say({"results": outcome.results, "restarts": outcome.restarts}, arguments.json)


def _write_reports(hangs: Sequence[HangReport], folder: Path | None) -> None:
    if not hangs:
        return
    try:
        shown = f"{hangs[-1].write((folder or Path()) / 'hang-report')} shows each task."
    except OSError as error:
        shown = f"Its page cannot be written here ({error.strerror})."
    print(f"{hangs[-1].summary} {shown}", file=sys.stderr)


def check_machines(arguments: argparse.Namespace) -> int:
    """On every machine before training: do they find, reach and understand each other?"""
    config = arguments.config or os.environ.get("TF_CONFIG")
    if not config:
        raise CourseError("no TF_CONFIG: set the variable, or give --config this machine's, as training will get it.")
    if not config.lstrip().startswith("{"):
        try:
            config = Path(config).read_text()
        except OSError as error:
            raise CourseError(f"--config {config} is neither JSON nor a file ({error.strerror}).") from None
    if arguments.folder and not arguments.folder.is_dir():
        raise CourseError(f"--folder {arguments.folder} is no folder on this machine: make it, or mount it.")
    check = MachineCheck(config, arguments.folder, arguments.seconds)
    arguments.at(check.name)
    asyncio.run(check.run())
    if arguments.json:
        print(json.dumps({"task": check.name, "fine": check.fine, "findings": list(map(asdict, check.findings))}))
    else:
        print(f"{check.name} of {', '.join(check.addresses)}", *check.findings, sep="\n")
    return 0 if check.fine else 1


def write_for_slurm(arguments: argparse.Namespace) -> int:
    """Write a job's batch script; submit it if asked."""
    job = _job(arguments)
    script = slurm.write_batch(job, arguments.folder, options=arguments.option)
    answer = {"script": str(script)}
    try:
        if arguments.submit or arguments.wait:
            answer["job"] = slurm.submit(script, wait=arguments.wait)
        if arguments.wait:
            answer["results"] = slurm.read_results(job, script.parent)
    except RunFailed as failed:
        return _say_why(failed)
    if not arguments.json:
        submit = f"wrote {script}; submit it with: sbatch {shlex.quote(str(script))}"
        print(f"Slurm's job {answer['job']}" if "job" in answer else submit)
    return _say(answer, arguments.json)


def print_for_kubernetes(arguments: argparse.Namespace) -> int:
    """Print a job's manifests, for kubectl apply."""
    manifests = kubernetes.manifests(_job(arguments), arguments.name, arguments.image, claim=arguments.claim)
    print(kubernetes.as_text(manifests))
    return 0


def _say(answer: dict[str, object], as_json: bool) -> int:
    if as_json:  # an array as lists of numbers; anything else that JSON does not know as text
        print(json.dumps(answer, default=lambda value: value.tolist() if hasattr(value, "tolist") else repr(value)))
    else:
        for task, result in answer.get("results", {}).items():
            print(f"{task} returned {result!r}")
    return 0


def _say_why(failed: RunFailed) -> int:
    print("\n".join(failed._render_traceback_()), file=sys.stderr)
    return 1


def _add_job(parser: argparse.ArgumentParser) -> None:
    defaults = {name: field.default for kind in (Job, Resources) for name, field in kind.__dataclass_fields__.items()}
    parser.add_argument("program", help='"file.py:function" or "module:function"; it gets the task and the arguments')
    for name, kind, text in (
        ("workers", int, "tasks that compute"),
        ("parameter_servers", int, "tasks that hold variables; they bring a chief"),
        ("restarts", int, "failures to recover from"),
        ("cpus", int, "cores per task"),
        ("gpus", int, "GPUs per task"),
        ("memory_gib", float, "memory per task, in GiB"),
        ("limit_seconds", float, "the whole run ends after this long"),
        ("hang_seconds", float, "without progress of any task for this long, the run ends, or restarts, with a report"),
    ):
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=defaults[name], help=text)
    parser.add_argument("--evaluator", action="store_true", help="one more task beside the training")
    parser.add_argument("--framework", choices=FRAMEWORKS, default="tensorflow", help="Keras' backend")
    parser.add_argument(
        "--argument", action="append", default=[], metavar="NAME=VALUE", help="of the program, JSON or text; repeat it"
    )


def _job(arguments: argparse.Namespace) -> Job:
    named = vars(arguments)
    search_current_folder()
    return Job(
        arguments.program,
        arguments=dict(map(name_and_value, arguments.argument)),
        resources=Resources(**{name: named[name] for name in Resources.__dataclass_fields__ if name in named}),
        **{name: named[name] for name in OF_THE_JOB},
    )
