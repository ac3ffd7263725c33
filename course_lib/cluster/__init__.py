"""Distributed jobs: described once, run on this machine, under Slurm or on Kubernetes; taught in notebooks/03 and 04."""

from course_lib.cluster.job import Job, Link, Resources
from course_lib.cluster.local import Cluster, run, start
from course_lib.cluster.outcome import Exit, Outcome, Report, RunFailed
from course_lib.cluster.task import Task

__all__ = ["Cluster", "Exit", "Job", "Link", "Outcome", "Report", "Resources", "RunFailed", "Task", "run", "start"]
