"""The manifests against Kubernetes' own schemas, and what a pod makes of its environment."""

import copy
import json

import kubernetes_validate
import pytest
import yaml

from course_lib import cluster
from course_lib.cluster import kubernetes
from course_lib.cluster.own_task import FIRST_PORT, identify_task
from course_lib.errors import CourseError

VERSION = "1.34"


def train(task, steps):
    return steps


JOB = cluster.Job(
    train,
    workers=2,
    arguments={"steps": 3},
    restarts=2,
    resources=cluster.Resources(cpus=4, gpus=1, memory_gib=8, limit_seconds=600),
)


def validate(manifest: dict) -> None:
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def job_of(items: list[dict]) -> dict:
    return next(item for item in items if item["kind"] == "Job")


@pytest.mark.parametrize(
    "job", [JOB, cluster.Job(train, workers=2, parameter_servers=1, evaluator=True)], ids=["workers", "servers"]
)
@pytest.mark.parametrize("claim", [None, "checkpoints"])
def test_kubernetes_own_schemas_accept_every_manifest(job, claim):
    items = kubernetes.manifests(job, "digits", "registry.example/course:1", claim=claim)
    assert [item["kind"] for item in items] == ["ConfigMap", "Service", "Job"]
    for item in items:
        validate(item)


def test_the_schemas_refuse_what_is_wrong():
    job = job_of(kubernetes.manifests(JOB, "digits", "image"))
    for spoil in (
        lambda spec: spec.update(completions="two"),
        lambda spec: spec.update(completionmode="Indexed"),
        lambda spec: spec["template"]["spec"]["containers"][0].pop("name"),
    ):
        spoiled = copy.deepcopy(job)
        spoil(spoiled["spec"])
        with pytest.raises(kubernetes_validate.ValidationError):
            validate(spoiled)


def test_the_text_is_yaml_that_holds_the_same():
    items = kubernetes.manifests(JOB, "digits", "image")
    assert yaml.safe_load(kubernetes.as_text(items)) == {"apiVersion": "v1", "kind": "List", "items": items}


def test_the_job_asks_for_what_the_job_asks_for():
    spec = job_of(kubernetes.manifests(JOB, "digits", "image", claim="checkpoints"))["spec"]
    pod = spec["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (
        2,
        2,
        4,
        600,
    )
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "4", "memory": "8192Mi"},
        "limits": {"memory": "8192Mi", "nvidia.com/gpu": "1"},
    }
    assert {"name": "folder", "persistentVolumeClaim": {"claimName": "checkpoints"}} in pod["volumes"]


def test_a_job_of_servers_succeeds_with_its_programs():
    items = kubernetes.manifests(cluster.Job(train, workers=2, parameter_servers=1, evaluator=True), "digits", "image")
    assert job_of(items)["spec"]["successPolicy"] == {
        "rules": [{"succeededIndexes": "0,4"}]
    }  # chief, two workers, ps, evaluator
    assert "successPolicy" not in job_of(kubernetes.manifests(JOB, "digits", "image"))["spec"]


def test_the_job_lies_in_the_folder_that_the_task_writes():
    """And jobs that share a claim have a folder each."""
    (container,) = job_of(kubernetes.manifests(JOB, "digits", "image", claim="checkpoints"))["spec"]["template"][
        "spec"
    ]["containers"]
    folder = container["command"][-1]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts[folder]["subPath"] == "digits" and mounts[f"{folder}/job.json"]["subPath"] == "job.json"


def test_the_config_map_carries_the_job_unchanged():
    config, *_ = kubernetes.manifests(JOB, "digits", "image")
    assert cluster.Job.from_json(config["data"]["job.json"]) == JOB


def test_each_pod_identifies_its_task():
    """The names are those that the Service gives to the pods of an indexed Job: JOB-INDEX.SUBDOMAIN."""
    items = kubernetes.manifests(JOB, "digits", "image")
    pod = job_of(items)["spec"]["template"]["spec"]
    environment = {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]}
    name, addresses = identify_task(JOB, {**environment, "JOB_COMPLETION_INDEX": "1"})
    assert name == "worker 1"
    assert addresses == {"worker 0": f"digits-0.digits:{FIRST_PORT}", "worker 1": f"digits-1.digits:{FIRST_PORT + 1}"}
    assert pod["subdomain"] == items[1]["metadata"]["name"] == "digits"


@pytest.mark.parametrize("name", ["Digits", "1st", "a" * 60, "digits_1", ""])
def test_a_name_that_kubernetes_refuses_is_one_line(name):
    with pytest.raises(CourseError, match="not a name that Kubernetes takes"):
        kubernetes.manifests(JOB, name, "image")


def test_variables_that_do_not_fit_the_job_are_one_line():
    config = {"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": 0}}
    for environment, words in (
        ({"TF_CONFIG": json.dumps(config)}, "disagrees with the job.*worker 2, and the job has worker 0, worker 1"),
        ({"TF_CONFIG": "[]"}, "not a JSON object"),
        ({"COURSE_HOSTS": "a", "SLURM_PROCID": "0"}, "2 tasks and COURSE_HOSTS names 1 hosts"),
        ({}, "COURSE_HOSTS names 0 hosts"),
    ):
        with pytest.raises(CourseError, match=words):
            identify_task(JOB, environment)


def test_an_operators_tf_config_is_taken():
    config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
    assert identify_task(JOB, {"TF_CONFIG": json.dumps(config)}) == ("worker 1", {"worker 0": "a:1", "worker 1": "b:2"})
