"""Distributed jobs, described once and run here, under Slurm or on Kubernetes; taught in notebooks/03 and 04."""

from course_lib.cluster.job import Job, Link, Resources
from course_lib.cluster.local import LocalCluster, run, start
from course_lib.cluster.outcome import Exit, Outcome, RunFailed, TaskReport
from course_lib.cluster.task import Task

__all__ = [
    "LocalCluster",
    "Exit",
    "Job",
    "Link",
    "Outcome",
    "TaskReport",
    "Resources",
    "RunFailed",
    "Task",
    "run",
    "start",
]
