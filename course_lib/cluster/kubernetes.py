"""A job as Kubernetes manifests: the same program, in an indexed Job's pods; taught in notebooks/03.

Standard library only. The pods find each other by the stable names that a
headless Service gives them. The image must hold this package and its framework.

Sources: kubernetes.io, Indexed Job for parallel processing with static work assignment;
Job with pod-to-pod communication.
"""

import json
import math
import re
from collections.abc import Sequence

from course_lib.cluster.job import Job
from course_lib.cluster.own_task import FIRST_PORT
from course_lib.errors import CourseError

NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")  # RFC 1035, short enough for a pod's suffix
FOLDER = "/course"


def manifests(job: Job, name: str, image: str, *, claim: str | None = None) -> list[dict]:
    """A ConfigMap with the job, a headless Service, and the Job: one pod per task.

    name    of the three, and of the pods: lower-case letters, digits and hyphens
    image   of the pods
    claim   a PersistentVolumeClaim that all pods can write (ReadWriteMany), for checkpoints and results
            in a folder of this name; without one, each pod has an empty `task.folder`, a restart
            begins at the start, and what the program returned goes with the pods
    Raises  CourseError for a name that Kubernetes would refuse

    A lost task ends the others; the pods that take their places begin with `task.attempt` 0.
    Parameter servers need Kubernetes 1.31, where a Job can succeed though some pods only serve.
    """
    if not NAME.fullmatch(name):
        raise CourseError(
            f"{name!r} is not a name that Kubernetes takes: use up to 52 lower-case letters, digits and hyphens, "
            f"a letter first."
        )
    if job.link:
        raise CourseError(
            "a link of limited rate is for local runs; on Kubernetes the network is the cluster's: leave link out."
        )
    labels = {"app.kubernetes.io/name": name}
    common = {"apiVersion": "v1", "metadata": {"name": name, "labels": labels}}
    config = {**common, "kind": "ConfigMap", "data": {"job.json": job.as_json()}}
    # The tasks look for each other before any of them is ready.
    spec = {"clusterIP": "None", "selector": {"job-name": name}, "publishNotReadyAddresses": True}
    pods = {"metadata": {"labels": labels}, "spec": _pod(job, name, image, claim)}
    indexed = {**common, "apiVersion": "batch/v1", "kind": "Job", "spec": {**_job_spec(job), "template": pods}}
    return [config, {**common, "kind": "Service", "spec": spec}, indexed]


def as_text(items: Sequence[dict]) -> str:
    """One List in JSON, which is YAML as well: `kubectl apply -f` takes it."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}, indent=2)


def _job_spec(job: Job) -> dict:
    tasks = len(job.tasks)
    spec = {
        "completionMode": "Indexed",  # each pod gets JOB_COMPLETION_INDEX, its task's rank
        "completions": tasks,
        "parallelism": tasks,  # all at once: none can begin without the others
        "backoffLimit": job.restarts * tasks,  # a lost pod takes the others with it, and each counts
        "activeDeadlineSeconds": math.ceil(job.resources.limit_seconds),
    }
    if job.programs != job.tasks:  # success is that every program has returned: servers never end by themselves
        ranks = ",".join(str(rank) for rank, name in enumerate(job.tasks) if name in job.programs)
        spec["successPolicy"] = {"rules": [{"succeededIndexes": ranks}]}
    return spec


def _pod(job: Job, name: str, image: str, claim: str | None) -> dict:
    memory = {"memory": f"{round(job.resources.memory_gib * 1024)}Mi"}
    cpus = {"cpu": str(job.resources.cpus)} if job.resources.cpus else {}
    gpus = {"nvidia.com/gpu": str(job.resources.gpus)} if job.resources.gpus else {}
    hosts = ",".join(f"{name}-{rank}.{name}" for rank in range(len(job.tasks)))
    storage = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    ports = range(FIRST_PORT, FIRST_PORT + len(job.tasks) + 1)  # the tasks' and their rendezvous'
    return {
        "subdomain": name,
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "task",
                "image": image,
                "command": ["python", "-u", "-m", "course_lib.cluster", FOLDER],
                "env": [{"name": "COURSE_HOSTS", "value": hosts}],
                "ports": [{"containerPort": port} for port in ports],
                "resources": {"requests": {**cpus, **memory}, "limits": {**memory, **gpus}},
                "volumeMounts": [
                    {"name": "folder", "mountPath": FOLDER, **({"subPath": name} if claim else {})},
                    {"name": "job", "mountPath": f"{FOLDER}/job.json", "subPath": "job.json", "readOnly": True},
                ],
            }
        ],
        "volumes": [{"name": "job", "configMap": {"name": name}}, {"name": "folder", **storage}],
    }
