"""Small parts of `course_lib.cluster` against what is worked out by hand: no network, and next to no process."""

import argparse
import asyncio
import errno
import json
import os
import pickle
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from conftest import HAS_TENSORFLOW

from course_lib import cluster
from course_lib.cli import main
from course_lib.cluster import (
    cluster_command,
    communication,
    hang_watch,
    kubernetes,
    limited_links,
    local,
    machine_check,
    machine_links,
    own_task,
    processes,
    run_state,
    slurm,
    start_supervisor,
    task,
    task_process,
    worker_program,
)
from course_lib.cluster.worker_program import WorkerProgram
from course_lib.errors import CourseError

GIB = 2**30
PROGRAM = WorkerProgram("program", text="def program(task):\n    return task.index\n")


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 10 * GIB),  # no container
        ({"memory.max": "max\n", "memory.current": str(GIB)}, 10 * GIB),  # one without a limit
        ({"memory.max": str(8 * GIB), "memory.current": str(6 * GIB)}, None),  # no memory.stat: not read to its end
        ({"memory.max": str(8 * GIB), "memory.current": str(6 * GIB), "memory.stat": "anon 5\n"}, 2 * GIB),
        (
            {
                "memory.max": str(8 * GIB),
                "memory.current": str(6 * GIB),
                "memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
            },
            3 * GIB,
        ),
        ({"memory.max": str(90 * GIB), "memory.current": str(6 * GIB), "memory.stat": "anon 5\n"}, 10 * GIB),
    ],
)
def test_free_memory_is_the_machines_or_what_a_container_leaves(files, free, tmp_path, monkeypatch):
    monkeypatch.setattr(local.psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * GIB))
    monkeypatch.setattr(local, "Path", lambda name: tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert local._free_memory_bytes() == (free or 10 * GIB)


def test_stored_timings_are_read_with_what_they_measured():
    for name in ("all-reduce", "training"):
        measured, timings = communication.stored(name)
        assert "20" in measured and len(timings) >= 3
        assert all(timing.workers == 2 and 0.5 < timing.ratio < 2 for timing in timings)
        assert all((timing.compute_seconds > 1e-3) == (name == "training") for timing in timings)
        assert all(timing.sent_bytes >= communication.ring_bytes(2, timing.buffer_bytes) for timing in timings)


def test_a_timing_says_all_of_itself():
    timing = communication.LinkTiming(2, 12.112, 1_448_000, 1.5e6, compute_seconds=0.5, measured_seconds=2.0)
    assert str(timing) == (
        "2 workers, 12.112 megabit/s, 1.45 MB: sent 1.50 MB, compute 0.500 s, step 2.000 s, "
        "predicted 1.500 s, ratio 0.75"
    )


@pytest.mark.parametrize(
    ("sbatch", "raised", "words"),
    [
        ("echo '7;here'; exit 1", cluster.RunFailed, "Slurm's job 7 failed: read batch.log and task-*.log in"),
        ("echo 'Welcome, 2 nodes are down'; echo 12; exit 1", cluster.RunFailed, "Slurm's job 12 failed"),
        ("echo 'come back later'; exit 0", CourseError, "took no job (come back later)"),
        ("echo first >&2; echo 'no such partition' >&2; exit 1", CourseError, "took no job (no such partition)"),
        ("exit 1", CourseError, "took no job (no message)"),
    ],
)
def test_what_sbatch_says_is_passed_on(sbatch, raised, words, tmp_path, monkeypatch):
    program = tmp_path / "sbatch"
    program.write_text(f"#!/bin/sh\n{sbatch}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(raised) as failed:
        slurm.submit(tmp_path / "batch.sh", wait=True)
    assert words in str(failed.value)


def test_a_program_is_read_as_utf_8_whatever_the_locale_is(tmp_path, monkeypatch):
    """A locale's own encoding is what `open` takes without one; here it is one that has no such letter."""
    (tmp_path / "train.py").write_bytes('def train(task):\n    return "übung"\n'.encode())
    asked = []
    plain = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, encoding=None, **more: asked.append(encoding) or plain(path, "utf-8")
    )
    program = worker_program._from_text(f"{tmp_path / 'train.py'}:train")
    assert program.file == "train.py" and '"übung"' in program.text and asked == ["utf-8"]


# What is written for others


SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=program
#SBATCH '--output=/shared/my run/batch.log'
#SBATCH --ntasks=3
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=1537M
#SBATCH --gpus-per-task=2
#SBATCH --time=51
#SBATCH --requeue
#SBATCH --partition=gpu

unset TF_CONFIG  # of the shell that submits this: it would make every task the same one
export SRUN_CPUS_PER_TASK=4  # srun does not take it from sbatch, since Slurm 22.05
rm -f '/shared/my run'/results/*.pickle '/shared/my run'/reports/*/*.jsonl
"""


def test_a_batch_script_asks_for_the_jobs_numbers_rounded_up(tmp_path):
    folder = tmp_path / "my run"
    resources = cluster.Resources(cpus=4, gpus=2, memory_gib=6.001, limit_seconds=3001)
    job = cluster.Job(PROGRAM, workers=3, restarts=2, resources=resources)
    path = slurm.write_batch(job, str(folder), python="/opt/my python", options=["--partition=gpu"])
    text = path.read_text().replace(str(folder), "/shared/my run")
    assert path == folder / "batch.sh" and text.startswith(SCRIPT)
    assert "for attempt in $(seq 0 2); do" in text
    assert "'/opt/my python' -u -m course_lib.cluster '/shared/my run' && exit 0" in text
    assert cluster.Job.from_json((folder / "job.json").read_text()) == job


def test_a_batch_script_of_a_plain_job_asks_for_one_core_and_is_not_started_again(tmp_path):
    text = slurm.write_batch(cluster.Job(PROGRAM), tmp_path / "a" / "b").read_text()
    asked = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert asked[2:] == ["--ntasks=2", "--cpus-per-task=1", "--mem-per-cpu=1024M", "--time=10", "--no-requeue"]
    assert f"/task-%t.log {sys.executable} -u -m" in text


def test_results_are_those_of_the_programs_and_a_missing_one_is_named(tmp_path):
    job = cluster.Job(PROGRAM, workers=2)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "worker 0.pickle").write_bytes(pickle.dumps({"loss": 0.5}))
    with pytest.raises(CourseError, match="has no result of worker 1: the job waits, runs"):
        slurm.read_results(job, tmp_path)
    (tmp_path / "results" / "worker 1.pickle").write_bytes(pickle.dumps([1]))
    assert slurm.read_results(job, str(tmp_path)) == {"worker 0": {"loss": 0.5}, "worker 1": [1]}


def test_the_failure_of_the_last_attempt_that_is_no_consequence_is_the_cause(tmp_path):
    said = {
        (0, "worker 0"): ("ValueError", "of the first attempt"),
        (10, "worker 0"): ("UnavailableError", "peer lost"),
        (10, "worker 1"): ("KeyError", "'rows'"),
        (9, "worker 1"): ("ValueError", "of attempt nine"),
    }
    for number, ((attempt, name), (error, message)) in enumerate(said.items()):
        path = tmp_path / "reports" / f"attempt {attempt}" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        last = {"event": "failed", "task": name, "error": error, "message": message, "traceback": f"of {name}"}
        path.write_text('{"event": "report", "task": "x", "values": {}}\n' + json.dumps(last) + "\n")
        os.utime(path, (number, number))
    (tmp_path / "reports" / "attempt 10" / "worker 2.jsonl").write_text('{"event": "returned", "task": "worker 2"}\n')
    (tmp_path / "reports" / "attempt 10" / "worker 3.jsonl").write_text("")
    failed = slurm._failure(tmp_path)
    assert str(failed) == f"worker 1 failed: KeyError: 'rows' (all tasks' lines are in {tmp_path}/task-*.log)"
    assert failed.cause == cluster.Exit("worker 1", 10, 1, False, False, "KeyError", "'rows'", "of worker 1")
    assert [exit.task for exit in failed.exits] == ["worker 0", "worker 1"] and failed.log == {}
    assert slurm._failure(tmp_path / "nothing") is None


def test_manifests_of_a_job_with_everything():
    resources = cluster.Resources(cpus=4, gpus=2, memory_gib=1.5, limit_seconds=59.2)
    job = cluster.Job(PROGRAM, workers=1, parameter_servers=1, restarts=2, resources=resources)
    config, service, indexed = kubernetes.manifests(job, "digits", "IMAGE", claim="CLAIM")
    common = {"apiVersion": "v1", "metadata": {"name": "digits", "labels": {"app.kubernetes.io/name": "digits"}}}
    assert config == {**common, "kind": "ConfigMap", "data": {"job.json": job.as_json()}}
    assert service == {
        **common,
        "kind": "Service",
        "spec": {"clusterIP": "None", "selector": {"job-name": "digits"}, "publishNotReadyAddresses": True},
    }
    pod = indexed["spec"].pop("template")
    assert indexed == {
        **common,
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {
            "completionMode": "Indexed",
            "completions": 3,
            "parallelism": 3,
            "backoffLimit": 6,
            "activeDeadlineSeconds": 60,
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        },
    }
    (container,) = pod["spec"].pop("containers")
    assert pod == {
        "metadata": {"labels": {"app.kubernetes.io/name": "digits"}},
        "spec": {
            "subdomain": "digits",
            "restartPolicy": "Never",
            "volumes": [
                {"name": "job", "configMap": {"name": "digits"}},
                {"name": "folder", "persistentVolumeClaim": {"claimName": "CLAIM"}},
            ],
        },
    }
    assert container == {
        "name": "task",
        "image": "IMAGE",
        "command": ["python", "-u", "-m", "course_lib.cluster", "/course"],
        "env": [{"name": "COURSE_HOSTS", "value": "digits-0.digits,digits-1.digits,digits-2.digits"}],
        "ports": [{"containerPort": port} for port in (23450, 23451, 23452, 23453)],
        "resources": {
            "requests": {"cpu": "4", "memory": "1536Mi"},
            "limits": {"memory": "1536Mi", "nvidia.com/gpu": "2"},
        },
        "volumeMounts": [
            {"name": "folder", "mountPath": "/course", "subPath": "digits"},
            {"name": "job", "mountPath": "/course/job.json", "subPath": "job.json", "readOnly": True},
        ],
    }


def test_manifests_of_a_plain_job_leave_out_what_it_does_not_ask_for():
    *_, indexed = kubernetes.manifests(cluster.Job(PROGRAM), "a" * 52, "IMAGE")
    assert "successPolicy" not in indexed["spec"] and indexed["spec"]["backoffLimit"] == 0
    pod = indexed["spec"]["template"]["spec"]
    assert pod["volumes"][1] == {"name": "folder", "emptyDir": {}}
    assert pod["containers"][0]["volumeMounts"][0] == {"name": "folder", "mountPath": "/course"}
    assert pod["containers"][0]["resources"] == {"requests": {"memory": "1024Mi"}, "limits": {"memory": "1024Mi"}}
    with pytest.raises(CourseError, match="leave link out"):
        kubernetes.manifests(cluster.Job(PROGRAM, link=cluster.Link(100)), "digits", "IMAGE")
    for name in ("a" * 53, "a-", "-a", "aB"):
        with pytest.raises(CourseError, match="not a name that Kubernetes takes"):
            kubernetes.manifests(cluster.Job(PROGRAM), name, "IMAGE")


# What a task gets


def test_all_variables_of_a_task(monkeypatch):
    monkeypatch.setattr(os, "environ", {"TF_CONFIG": "{}", "HOME": "/home", "CUDA_VISIBLE_DEVICES": "4,5,6,7,8,9"})
    job = cluster.Job(PROGRAM, workers=3, environment={"A": "b"}, resources=cluster.Resources(gpus=2))
    addresses = {"worker 0": "b:1", "worker 1": "a:2", "worker 2": "a:3"}
    assert task_process.task_environment(job, Path("/folder"), addresses, "worker 1", 5, 17) == {
        "HOME": "/home",
        "CUDA_VISIBLE_DEVICES": "6,7",
        "no_grpc_proxy": "a,b",
        "A": "b",
        "COURSE_ATTEMPT": "5",
        "COURSE_ADDRESSES": '{"worker 0": "b:1", "worker 1": "a:2", "worker 2": "a:3"}',
        "COURSE_CHANNEL": "17",
        "COURSE_FOLDER": "/folder",
        "COURSE_TASK": "worker 1",
        "TMPDIR": "/folder/tmp",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.mark.parametrize(
    ("fields", "task", "variables"),
    [
        (
            {"parameter_servers": 1, "evaluator": True},
            "evaluator 0",
            {
                "KERAS_BACKEND": "tensorflow",
                "TF_CONFIG": '{"cluster": {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]}, '
                '"task": {"type": "evaluator", "index": 0}}',
                "GRPC_FAIL_FAST": "use_caller",
            },
        ),
        (
            {"framework": "jax", "environment": {"A": "b"}},
            "worker 1",
            {
                "KERAS_BACKEND": "jax",
                "A": "b",
                "KERAS_DISTRIBUTION_JOB_ADDRESSES": "w:1",
                "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
                "KERAS_DISTRIBUTION_PROCESS_ID": "1",
            },
        ),
        ({"framework": "jax", "evaluator": True}, "evaluator 0", {"KERAS_BACKEND": "jax"}),
    ],
)
def test_what_frameworks_learn_from(fields, task, variables):
    addresses = {"chief 0": "c:1", "worker 0": "w:1", "worker 1": "w:2", "ps 0": "p:1", "evaluator 0": "e:1"}
    assert cluster.Job(PROGRAM, **fields).task_environment(task, addresses) == variables


def test_defaults_and_bounds_of_a_job():
    job = cluster.Job(PROGRAM)
    assert (job.workers, job.parameter_servers, job.evaluator, job.framework) == (2, 0, False, "tensorflow")
    assert (job.restarts, job.link, job.hang_seconds) == (0, None, None)
    assert job.resources == cluster.Resources(None, 0, 1.0, 600.0, None)
    for fields in ({"workers": 0}, {"parameter_servers": -1}, {"restarts": -1}, {"hang_seconds": 0}):
        with pytest.raises(CourseError):
            cluster.Job(PROGRAM, **fields)
    for fields in ({"workers": 1}, {"hang_seconds": 0.5}):
        cluster.Job(PROGRAM, **fields)
    for fields in ({"cpus": 0}, {"memory_gib": 0.0}, {"limit_seconds": 0}, {"task_seconds": 0}, {"gpus": -1}):
        with pytest.raises(CourseError, match=f"Resources.{next(iter(fields))} must be"):
            cluster.Resources(**fields)
    for fields in ({"cpus": 1}, {"memory_gib": 0.5}, {"limit_seconds": 0.5}, {"task_seconds": 0.5}, {"gpus": 0}):
        cluster.Resources(**fields)
    with pytest.raises(CourseError, match="environment maps text to text"):
        cluster.Job(PROGRAM, environment={"A": 1})


def test_which_jobs_need_a_framework_and_which_tasks_come_back_alone():
    assert not cluster.Job(PROGRAM).needs_framework
    assert cluster.Job(PROGRAM, parameter_servers=1).needs_framework
    for line in ("import keras.ops as ops", "from tensorflow.data import Dataset", "def f():\n  import jax"):
        assert cluster.Job(WorkerProgram("f", text=line)).needs_framework
    assert cluster.Job("json:dumps").needs_framework  # a module: its text is not looked at
    plain, served = cluster.Job(PROGRAM, evaluator=True), cluster.Job(PROGRAM, parameter_servers=1)
    assert [plain.rejoins(task) for task in ("worker 0", "evaluator 0")] == [False, True]
    assert [served.rejoins(task) for task in ("chief 0", "worker 0", "ps 0")] == [False, True, False]


@pytest.mark.parametrize(
    ("environment", "identity"),
    [
        (
            {"COURSE_TASK": "worker 1", "COURSE_ADDRESSES": '{"worker 0": "a:1"}', "TF_CONFIG": "{"},
            ("worker 1", {"worker 0": "a:1"}),
        ),
        (
            {"COURSE_HOSTS": "a,,b,", "SLURM_PROCID": "1", "JOB_COMPLETION_INDEX": "0", "COURSE_FIRST_PORT": "7"},
            ("worker 1", {"worker 0": "a:7", "worker 1": "b:8"}),
        ),
        (
            {"COURSE_HOSTS": "a,b", "JOB_COMPLETION_INDEX": "0"},
            ("worker 0", {"worker 0": "a:23450", "worker 1": "b:23451"}),
        ),
    ],
)
def test_a_task_finds_itself(environment, identity):
    assert own_task.identify_task(cluster.Job(PROGRAM), environment) == identity


def test_an_operators_evaluator_is_in_no_list():
    job = cluster.Job(PROGRAM, workers=1, evaluator=True)
    text = json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}})
    assert own_task.identify_task(job, {"TF_CONFIG": text}) == ("evaluator 0", {"worker 0": "a:1"})
    with pytest.raises(CourseError, match="disagrees with the job: it makes this evaluator 0 of worker 0"):
        own_task.identify_task(cluster.Job(PROGRAM, workers=1), {"TF_CONFIG": text})


def test_a_task_knows_itself(tmp_path):
    addresses = {"chief 0": "a:1", "worker 0": "a:2", "worker 1": "a:3", "ps 0": "a:4"}
    task = cluster.Task("worker 1", addresses, tmp_path)
    assert (task.type, task.index, task.workers, task.is_chief, task.attempt) == ("worker", 1, 2, False, 0)
    assert cluster.Task("chief 0", addresses, tmp_path).is_chief
    assert not cluster.Task("worker 0", addresses, tmp_path).is_chief
    assert cluster.Task("worker 0", {"worker 0": "a:1"}, tmp_path).is_chief


# Links


def test_a_kernel_that_gives_no_network_namespace_is_quoted(monkeypatch):
    libc = SimpleNamespace(unshare=lambda kind: -1)
    monkeypatch.setattr(limited_links.ctypes, "CDLL", lambda name, use_errno: libc)
    monkeypatch.setattr(limited_links.ctypes, "get_errno", lambda: errno.EPERM)
    with pytest.raises(OSError, match="no new network namespace: Operation not permitted"):
        limited_links._new_namespace()


def test_a_bucket_holds_two_milliseconds_and_ten_frames_or_more():
    # 200 megabit/s x 2 ms / 8 = 50,000 bytes; ten frames of 1,514 bytes are 15,140
    assert limited_links.token_bucket(cluster.Link(200)) == [
        *("tbf", "rate", "200000000bit", "burst", "50000b", "latency", "100ms")
    ]
    assert limited_links.token_bucket(cluster.Link(0.5))[1:5] == ["rate", "500000bit", "burst", "15140b"]
    assert limited_links.PAYLOAD_SHARE == 1448 / 1514


@pytest.mark.parametrize("megabits", [0.09, 10_001, -1])
def test_links_of_other_rates_are_refused(megabits):
    with pytest.raises(CourseError, match=f"between 0.1 and 10000 megabits per second, not {megabits:g}"):
        limited_links.require(cluster.Link(megabits))


def test_what_a_machine_lacks_for_links_is_named(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CourseError, match="need root on Linux, and this process runs as user 1000 on Linux"):
        limited_links.require(cluster.Link(0.1))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(limited_links.shutil, "which", lambda name: name == "nsenter")
    with pytest.raises(CourseError, match="need ip, tc, unshare: install iproute2 and util-linux"):
        limited_links.require(cluster.Link(10_000))
    monkeypatch.setattr(limited_links.shutil, "which", lambda name: name)
    called = []
    monkeypatch.setattr(limited_links, "_run", called.append)
    limited_links.require(cluster.Link(100))
    ((*before, shell),) = called
    assert before == ["unshare", "--net", "sh", "-c"] and shell == (
        "ip link add switch type bridge && ip link add eth0 type veth && "
        "tc qdisc add dev eth0 root tbf rate 100000000bit burst 25000b latency 100ms"
    )

    def refuses(command):
        raise OSError("Operation not permitted")

    monkeypatch.setattr(limited_links, "_run", refuses)
    with pytest.raises(CourseError, match="does not allow links of limited rate .Operation not permitted"):
        limited_links.require(cluster.Link(100))
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(CourseError, match="runs as on darwin"):
        limited_links.require(cluster.Link(100))


def test_a_command_that_fails_is_shown_with_what_it_said():
    assert limited_links._run(["cat"], ["one", "two"]) == "one\ntwo"
    with pytest.raises(OSError, match=r"^`sh -c echo no >&2; echo way >&2; exit 3` said: no way$"):
        limited_links._run(["sh", "-c", "echo no >&2; echo way >&2; exit 3"])
    with pytest.raises(OSError, match=r"said: 3$"):
        limited_links._run(["sh", "-c", "exit 3"])


def test_a_ring_sends_twice_the_buffer_less_a_part():
    assert [communication.ring_bytes(workers, 120) for workers in (1, 2, 3, 4)] == [0, 120, 160, 180]
    seconds = communication.ring_seconds(2, 1_448_000, 12.112)  # 1,000 frames of 1,514 bytes are 12.112 Mbit
    assert seconds == pytest.approx(1.0)


def test_links_are_measured_rate_by_rate_and_the_slowest_worker_counts(monkeypatch):
    rows = {
        "worker 0": [
            {"buffer_bytes": 8, "compute_seconds": 0.1, "measured_seconds": 2.0, "sent_bytes": 10.0},
            {"buffer_bytes": 16, "compute_seconds": 0.3, "measured_seconds": 1.0, "sent_bytes": 20.0},
        ],
        "worker 1": [
            {"buffer_bytes": 8, "compute_seconds": 0.2, "measured_seconds": 1.0, "sent_bytes": 12.0},
            {"buffer_bytes": 16, "compute_seconds": 0.2, "measured_seconds": 3.0, "sent_bytes": 18.0},
        ],
    }
    ran = []
    monkeypatch.setattr(
        communication, "run", lambda job, show: ran.append((job, show)) or SimpleNamespace(results=rows)
    )
    assert communication.measure_training((50, 100)) == [
        communication.LinkTiming(2, 50, 8, 12.0, 0.2, 2.0),
        communication.LinkTiming(2, 100, 16, 20.0, 0.3, 3.0),
    ]
    ((job, show),) = ran
    assert show is None and job.link == cluster.Link(50) and job.workers == 2
    assert job.arguments == {"megabits": [50, 100], "repeats": 7}
    assert job.resources == cluster.Resources(cpus=1, limit_seconds=300)
    communication.measure_all_reduce((12.112,), workers=2, seconds=2.0, repeats=3)
    # two seconds carry twice 1,448,000 bytes, or 724,000 float32 numbers, in an even number
    assert ran[-1][0].arguments == {"megabits": [12.112], "sizes": [724_000], "repeats": 3}
    assert (ran[0][0].program.function, ran[1][0].program.function) == ("timed_training_steps", "timed_all_reduces")


def test_a_step_and_its_computing_take_turns_and_medians_count(monkeypatch):
    clock = iter([0.0] * 8 + [0, 1, 10, 12, 20, 25, 30, 34, 40, 42, 50, 59])  # two unmeasured pairs, then three
    monkeypatch.setattr(communication.time, "perf_counter", lambda: next(clock))
    sent = iter([100, 700])
    monkeypatch.setattr(limited_links, "sent_bytes", lambda: next(sent))
    order, read = [], []
    timing = communication._time(
        lambda: order.append("step") or SimpleNamespace(numpy=lambda: read.append(1)),
        3,
        lambda: order.append("compute"),
    )
    assert timing == {"compute_seconds": 2, "measured_seconds": 4, "sent_bytes": 200.0}
    assert order == ["compute", "step"] * 5 and len(read) == 5


# How tasks end


@pytest.mark.parametrize(
    ("exit", "said", "failed"),
    [
        (cluster.Exit("worker 0", 0, 0, False, returned=True), "worker 0 ended with exit code 0", False),
        (cluster.Exit("ps 1", 0, 3, False), "ps 1 ended with exit code 3 before its program returned", True),
        (
            cluster.Exit("ps 1", 0, -15, True),
            "ps 1 ended with signal 15 (Terminated) before its program returned",
            True,
        ),
        (cluster.Exit("ps 1", 0, -9, True), "ps 1 was ended by SIGKILL on request", False),
        (
            cluster.Exit("ps 1", 0, -9, False),
            "ps 1 was ended by SIGKILL from outside; when memory runs out, the system does that",
            True,
        ),
        (cluster.Exit("ps 1", 0, 1, False, error="E", message="\n  first\nsecond"), "ps 1 failed: E: first", True),
        (cluster.Exit("ps 1", 0, 1, False, error="E"), "ps 1 failed: E", True),
        (
            cluster.Exit("ps 1", 0, 1, False, returned=True, error="E", message="x" * 400),
            f"ps 1 failed: E: {'x' * 300}",
            True,
        ),
    ],
)
def test_an_end_is_said_and_judged(exit, said, failed):
    assert (str(exit), exit.failed) == (said, failed)


def test_an_outcome_says_who_returned_and_gives_the_first_result():
    outcome = cluster.Outcome({"worker 0": 5, "worker 1": 6}, (), {}, (), 2)
    assert outcome.result == 5 and repr(outcome) == "Outcome: worker 0, worker 1 returned, after 2 restarts"
    assert outcome.hangs == () and repr(cluster.Outcome({"chief 0": 1}, (), {}, (), 0)) == "Outcome: chief 0 returned"


def test_a_failed_run_shows_the_causes_traceback_above_its_line():
    cause = cluster.Exit("worker 1", 0, 1, False, error="KeyError", traceback="Traceback of it")
    failed = cluster.RunFailed("worker 1 failed", cause, [cause], {"worker 1": "line"}, ["report"])
    assert failed._render_traceback_() == ["worker 1:", "Traceback of it", "", "RunFailed: worker 1 failed"]
    assert (failed.exits, failed.log, failed.hangs) == ((cause,), {"worker 1": "line"}, ("report",))
    for quiet in (None, cluster.Exit("worker 1", 0, 1, False)):
        assert cluster.RunFailed("over", quiet, (), {})._render_traceback_() == ["RunFailed: over"]


# A run as its supervisor reports it


def state_after(job, *events):
    state = run_state.RunState(job, "/folder")
    for event in events:
        state._take(dict(event))
    return state


EVENTS = (
    {"event": "addresses", "addresses": {"worker 0": "a:1", "worker 1": "a:2"}},
    {"event": "started", "task": "worker 0", "pid": 10, "attempt": 0},
    {"event": "started", "task": "worker 1", "pid": 11, "attempt": 0},
    {"event": "line", "task": "worker 0", "stream": "out", "text": "one"},
    {"event": "line", "task": "worker 1", "stream": "err", "text": "two"},
    {"event": "line", "task": "worker 0", "stream": "err", "text": "three"},
    {"event": "report", "task": "worker 1", "values": {"step": 3}, "attempt": 0},
)


def test_a_state_is_what_was_reported():
    state = state_after(cluster.Job(PROGRAM), *EVENTS)
    assert state.addresses == {"worker 0": "a:1", "worker 1": "a:2"} and state.pids == {"worker 0": 10, "worker 1": 11}
    assert state.running() == ["worker 0", "worker 1"] and state.over is None and not state.closed
    assert state.logs() == {"worker 0": "one\nthree", "worker 1": "two"}
    assert state.reports == [cluster.TaskReport("worker 1", 0, {"step": 3})]
    state._take({"event": "failed", "task": "worker 1", "attempt": 0, "error": "E", "message": "m", "traceback": "t"})
    end = {"event": "exited", "task": "worker 1", "code": 1, "attempt": 0, "asked": False, "returned": False}
    state._take(dict(end))
    assert state.exits == [cluster.Exit("worker 1", 0, 1, False, False, "E", "m", "t")]
    assert state.running() == ["worker 0"] and not state.silent("worker 1") and state.deserted() is None
    state._take({"event": "restarting"})
    state._take({"event": "started", "task": "worker 1", "pid": 12, "attempt": 1})
    state._take({**end, "attempt": 1})
    assert state.exits[1] == cluster.Exit("worker 1", 1, 1, False) and state.pids["worker 1"] == 12
    state._take({"event": "gone", "task": "worker 1"})
    assert state.silent("worker 1")
    state._take({"event": "started", "task": "worker 1", "pid": 13, "attempt": 2})
    assert not state.silent("worker 1") and state.running() == ["worker 0", "worker 1"]
    state._take({"event": "obeyed", "refusal": "why"})
    assert state.refusals == ["why"]
    state._take({"event": "over", "kind": "stopped", "reason": "r", "restarts": 1})
    assert state.over == {"kind": "stopped", "reason": "r", "restarts": 1} and state.running() == []


def test_a_task_that_returned_is_silent_when_nothing_runs_it_again():
    returned = {"event": "returned", "task": "worker 0"}
    assert state_after(cluster.Job(PROGRAM), returned).silent("worker 0")
    job = cluster.Job(PROGRAM, restarts=1)
    assert not state_after(job, returned).silent("worker 0")
    assert state_after(job, {"event": "restarting"}, returned).silent("worker 0")
    again = {"event": "started", "task": "worker 0", "pid": 1}
    assert not state_after(cluster.Job(PROGRAM), returned, again).silent("worker 0")


def test_a_run_is_deserted_when_some_were_killed_and_the_others_returned():
    gone, returned = {"event": "gone", "task": "worker 1"}, {"event": "returned", "task": "worker 0"}
    job = cluster.Job(PROGRAM)
    assert state_after(job, gone).deserted() is None and state_after(job, returned).deserted() is None
    why = state_after(job, *EVENTS, gone, returned).deserted()
    assert str(why) == (
        "worker 1 was killed, and no task is left to wait for; last reports: worker 0 nothing; worker 1 step=3"
    )
    assert why.cause is None and why.log == {"worker 0": "one\nthree", "worker 1": "two"}
    both = {"event": "returned", "task": "worker 1"}
    assert state_after(job, gone, returned, both).deserted() is None


def test_what_a_task_can_no_longer_do_names_its_last_end():
    ends = [
        {"event": "exited", "task": task, "code": code, "attempt": attempt, "asked": True, "returned": False}
        for task, code, attempt in (("worker 1", 3, 0), ("worker 1", -9, 1), ("worker 0", 4, 0))
    ]
    state = state_after(cluster.Job(PROGRAM), *ends)
    assert str(state.never("worker 1", "print 'x'")) == (
        "worker 1 cannot print 'x': worker 1 was ended by SIGKILL on request."
    )
    assert str(state_after(cluster.Job(PROGRAM)).never("worker 1", "end")) == (
        "worker 1 cannot end: its program has returned."
    )


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("returned", {}, "all programs returned, and the end did not happen."),
        ("mistake", {"restarts": 3}, "a reason"),
        ("lost", {}, "a reason"),
        ("stopped", {}, "a reason; last reports: worker 0 nothing; worker 1 step=3"),
        ("limit", {"restarts": 3}, "a reason; last reports: worker 0 nothing; worker 1 step=3 (after 2 of 3 restarts)"),
        ("hung", {}, "a reason"),
        ("failed", {}, "worker 1 ended with exit code 7 before its program returned; its last line: two"),
    ],
)
def test_why_a_wait_cannot_end_well(kind, fields, said):
    end = {"event": "exited", "task": "worker 1", "code": 7, "attempt": 0, "asked": False, "returned": False}
    over = {"event": "over", "kind": kind, "reason": "a reason", "restarts": 2}
    why = state_after(cluster.Job(PROGRAM, **fields), *EVENTS, end, over).failure("the end")
    assert str(why) == said
    assert isinstance(why, cluster.RunFailed) == (kind in ("stopped", "limit", "hung", "failed"))
    if kind == "failed":
        assert why.cause.code == 7 and why.exits == (why.cause,) and why.log["worker 0"] == "one\nthree"


def test_a_lost_supervisors_last_words(tmp_path):
    state = run_state.RunState(cluster.Job(PROGRAM), str(tmp_path))
    line = "the cluster's supervisor ended ({}), and its tasks with it; start the cluster again"
    assert state._why_lost() == line.format("it was killed")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "supervisor.log").write_bytes(b"first\nlast \xff\n\n")
    assert state._why_lost() == line.format("last \ufffd")


# Processes


def test_cores_are_given_in_turn_and_shared_when_too_few(monkeypatch):
    pinned = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9, 3, 5}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append((pid, cores)), raising=False)
    for position in (0, 1, 2):
        processes.pin(77, position, 2)
    processes.pin(77, 0, None)
    assert pinned == [(77, {3, 5}), (77, {9, 3}), (77, {5, 9})]


def test_lines_come_whole_however_they_arrive():
    async def lines(*chunks, longest=None):
        reader = asyncio.StreamReader()
        left = list(chunks)

        async def read(size):
            return left.pop(0) if left else b""

        reader.read = read
        return [line async for line in processes.split_lines(reader, longest)]

    assert asyncio.run(lines(b"on", b"e\ntwo\n", b"\nlast")) == ["one", "two", "", "last"]
    assert asyncio.run(lines(b"abcdef", b"gh\nijklm", longest=4)) == ["abcd", "ijkl"]
    assert asyncio.run(lines(b"\xff\n")) == ["\ufffd"] and asyncio.run(lines()) == []


def test_a_new_python_gets_its_folder_its_channel_and_nothing_to_read(monkeypatch, tmp_path):
    started, pinned = [], []
    monkeypatch.setattr(
        task_process.subprocess, "Popen", lambda *words, **how: started.append((words, how)) or SimpleNamespace(pid=5)
    )
    monkeypatch.setattr(processes, "pin", lambda *how: pinned.append(how))
    job = cluster.Job(PROGRAM, resources=cluster.Resources(cpus=2))
    task_process.start_task(job, tmp_path, "worker 1", {"A": "b"}, 9, ["nsenter", "--"])
    (((command,), how),) = started
    assert command == ["nsenter", "--", sys.executable, "-m", "course_lib.cluster", str(tmp_path)]
    pipe, nothing = task_process.subprocess.PIPE, task_process.subprocess.DEVNULL
    assert how == {
        "stdin": nothing,
        "stdout": pipe,
        "stderr": pipe,
        "env": {"A": "b"},
        "pass_fds": [9],
        "start_new_session": True,
    }
    assert pinned == [(5, 1, 2)]


def test_a_supervisor_of_its_own_python_gets_the_path_the_lock_and_the_ports(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(
        start_supervisor.subprocess, "Popen", lambda *words, **how: started.append((words, how)) or "process"
    )
    monkeypatch.setattr(sys, "path", ["", "/lib"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    assert start_supervisor.start_supervisor(cluster.Job(PROGRAM), str(tmp_path), True, [7, 8], 9) == "process"
    (((command,), how),) = started
    assert command == [*(sys.executable, "-m", "course_lib.cluster.supervisor", str(tmp_path), "keep", "7", "8")]
    assert how.pop("env") == {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}/lib"}
    assert how.pop("stderr").name == str(tmp_path / "logs" / "supervisor.log")
    pipe = start_supervisor.subprocess.PIPE
    assert how == {"stdin": pipe, "stdout": pipe, "pass_fds": [9], "text": True, "start_new_session": True}
    start_supervisor.start_supervisor(cluster.Job(PROGRAM), str(tmp_path), False, (), 9)
    assert started[1][0][0][3:] == [str(tmp_path), "remove"]


def test_which_jobs_fork(monkeypatch):
    needs = WorkerProgram("f", text="import keras")
    monkeypatch.setattr(sys, "platform", "linux")
    assert start_supervisor.can_fork(cluster.Job(needs)) and not start_supervisor.can_fork(cluster.Job(PROGRAM))
    for fields in (
        {"resources": cluster.Resources(gpus=1)},
        {"link": cluster.Link(100)},
        {"environment": {"PYTHONHASHSEED": "0"}},
    ):
        assert not start_supervisor.can_fork(cluster.Job(needs, **fields))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not start_supervisor.can_fork(cluster.Job(needs))
    assert start_supervisor.modules(cluster.Job(needs, framework="jax")) == ("jax", "keras")
    assert start_supervisor.settings({"TF_CONFIG": "1", "TMPDIR": "2", "A": "b"}) == {"A": "b"}


def test_progress_is_what_each_task_has_noted_in_its_own_file(monkeypatch):
    monkeypatch.setattr(hang_watch.recorder, "notes", lambda path: path)
    tasks = {name: SimpleNamespace(attempt=1, code=None, returned=False) for name in ("worker 0", "ps 0")}
    paths = [hang_watch.recorder.path_of(Path("/folder"), name) for name in tasks]
    assert len({*paths}) == 2
    found = hang_watch._progress(tasks, Path("/folder"))
    assert found == [("worker 0", 1, None, False, paths[0]), ("ps 0", 1, None, False, paths[1])]


def test_processor_time_is_user_and_system_of_each_task_that_runs(monkeypatch):
    def process(pid):
        if pid == 2:
            raise psutil.NoSuchProcess(pid)
        return SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=1.5 * pid, system=0.25))

    monkeypatch.setattr(hang_watch.psutil, "Process", process)
    tasks = {f"worker {pid}": SimpleNamespace(process=SimpleNamespace(pid=pid)) for pid in (1, 2, 3)}
    assert hang_watch._cpu_seconds(tasks) == {"worker 1": 1.75, "worker 3": 4.75}


def test_what_each_task_looks_like_is_gathered_by_its_state(monkeypatch):
    monkeypatch.setattr(hang_watch.evidence, "gather", lambda *asked: asked)
    tasks = {
        name: SimpleNamespace(code=code, returned=returned, process=SimpleNamespace(pid=pid))
        for name, code, returned, pid in (
            ("worker 0", None, False, 5),
            ("worker 1", None, True, 6),
            ("worker 2", 0, True, 7),
        )
    }
    assert hang_watch._gather(tasks, Path("/folder"), {"worker 1": 0.5}) == (
        (Path("/folder"), "worker 0", 5, "running", None),
        (Path("/folder"), "worker 1", 6, "returned", 0.5),
        (Path("/folder"), "worker 2", None, "returned", None),
    )


@pytest.mark.parametrize(
    ("cause", "shown"), [("other order", True), ("entered alone", True), ("data ended", False), ("input", False)]
)
def test_a_failed_tasks_calls_are_shown_where_they_differ(cause, shown, monkeypatch):
    monkeypatch.setattr(hang_watch, "_gather", lambda tasks, folder, busy: (tasks, folder, busy))
    monkeypatch.setattr(hang_watch.HangReport, "diagnosis", SimpleNamespace(cause=cause))
    found = hang_watch.different_calls(SimpleNamespace(tasks={"worker 0": 1}, folder=Path("/folder")))
    assert found == (hang_watch.HangReport(({"worker 0": 1}, Path("/folder"), {}), 0) if shown else None)


# Machines before training


def machine_check_of(*workers, folder=None):
    text = json.dumps({"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": 0}})
    check = machine_check.MachineCheck(text, folder, 7.0)
    check._versions = {"python": "3.11", "keras": "3.13"}
    return check


def peer_of(check, name="worker 1", **fields):
    said = {"name": name, "addresses": dict(check.addresses), "versions": dict(check._versions), "token": "t"}
    return machine_links.Peer(**{"hello": said, "heard": True, "rate": 12.5e6, "ready": True, **fields})


def test_two_machines_that_agree():
    check = machine_check_of("a:1", "[::1]:2")
    check._compare({"worker 1": peer_of(check, offset=-0.26)})
    assert check.fine and [*map(str, check.findings)] == [
        "ok    reach: both ways: worker 1 at 100 megabit/s",
        "ok    lists: every task has the same, and its own place",
        "ok    versions: python 3.11, keras 3.13",
        "ok    clock: clocks agree to 0.26 s",
    ]
    assert machine_links.host_and_port("[::1]:2") == ("::1", 2)


def test_a_late_answer_says_less_about_a_clock():
    """On a busy machine an answer takes seconds: the clock may be right."""
    check = machine_check_of("a:1", "b:2", "c:3")
    check._compare({"worker 1": peer_of(check, offset=2.5, doubt=2.0), "worker 2": peer_of(check, offset=-0.5)})
    assert str(check.findings[-1]) == "ok    clock: clocks agree to 4.50 s"
    check._compare({"worker 1": peer_of(check, offset=-3.5, doubt=2.0), "worker 2": peer_of(check)})
    assert str(check.findings[-1]) == "FAULT clock: worker 1's clock differs by -3.5 s: synchronise both."


def test_every_fault_of_machines_is_a_line():
    check = machine_check_of("a:1", "b:2", "c:3", "d:4", "e:5")
    silent = machine_links.Peer(error="nothing listens there")
    deaf = peer_of(check, "worker 2", heard=False, offset=1.01)
    other = peer_of(check, "worker 9", heard=False, offset=-1.0)
    lists = peer_of(check, "worker 4")
    lists.hello["addresses"] = {"worker 0": "x:1"}
    lists.hello["versions"] = {"python": "3.13"}
    check._compare({"worker 1": silent, "worker 2": deaf, "worker 3": other, "worker 4": lists})
    assert not check.fine and [*map(str, check.findings)] == [
        "FAULT reach: worker 1 at b:2 is not reached: nothing listens there.",
        "FAULT reach: worker 2 does not reach this machine at a:1, though this machine reaches it.",
        "FAULT lists: d:4 says that it is worker 9, and this machine's list has worker 3 there.",
        "FAULT lists: worker 4 has another list of addresses: x:1.",
        "FAULT versions: python is 3.11 here and 3.13 on worker 4.",
        "FAULT versions: keras is 3.13 here and missing on worker 4.",
        "FAULT clock: worker 2's clock differs by +1.0 s: synchronise both.",
    ]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('a warning'); print(0.5)", "ok    all-reduce: 4 MiB in 0.500 s, 0.447 s by the slowest link's rate"),
        (
            "import sys; print('why', file=sys.stderr); print('x' * 300, file=sys.stderr)",
            f"FAULT all-reduce: TensorFlow's failed; its last line: {'x' * 200}",
        ),
        ("pass", "FAULT all-reduce: TensorFlow's failed; its last line: nothing"),
        (
            "import time; time.sleep(60)",
            "FAULT all-reduce: TensorFlow's did not end within 1 s, though the ports are open; "
            "look at what is between them.",
        ),
    ],
)
def test_a_sum_over_all_is_run_by_itself_and_judged(program, said, monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    check = machine_check_of("a:1", "b:2", "c:3")
    check.seconds = 1.0 if "sleep" in program else 60.0
    run, ran = machine_check.subprocess.run, []

    def instead(command, **how):
        ran.append((command, how["env"]))
        return run([sys.executable, "-c", program], **how)

    monkeypatch.setattr(machine_check.subprocess, "run", instead)
    # 4 MiB over three workers: 4/3 of them sent, at 12.5 MB/s
    asyncio.run(check._all_reduce({"worker 1": peer_of(check), "worker 2": peer_of(check, rate=50e6)}))
    assert [*map(str, check.findings)] == [said]
    assert ran[0][0][-1].endswith("m.sum_over_all()") and ran[0][1]["TF_CONFIG"] == check.config


def test_a_sum_is_tried_for_workers_alone():
    check = machine_check_of("a:1")
    asyncio.run(check._all_reduce({}))
    check.addresses = {"worker 0": "a:1", "ps 0": "b:1"}
    asyncio.run(check._all_reduce({"ps 0": peer_of(check)}))
    line = "ok    all-reduce: not tried: it is for two workers and more, without parameter servers"
    assert [*map(str, check.findings)] == [line] * 2


def test_a_folder_is_shared_when_each_sees_the_others_word(tmp_path):
    check = machine_check_of("a:1", "b:2", "c:3", folder=tmp_path)
    check.heard_seconds = 0.0
    assert check._write_token() and check._token("worker 0").name == ".course-check-worker-0"
    assert check._token("worker 0").read_text() == check._secret == check._hello()["token"]
    exchange = SimpleNamespace(peers={"worker 1": peer_of(check), "worker 2": machine_links.Peer()})
    asyncio.run(check._read_tokens(exchange))
    check._token("worker 1").write_text("another")
    asyncio.run(check._read_tokens(exchange))
    check._token("worker 1").write_text("t")
    asyncio.run(check._read_tokens(exchange))
    fault = f"FAULT folder: {tmp_path} is not shared: what worker 1 wrote is not there."
    assert [*map(str, check.findings)] == [fault, fault, f"ok    folder: {tmp_path} is shared"]
    assert not machine_check_of("a:1", "b:2")._write_token()


def test_a_rate_is_of_the_last_transfer_and_a_slow_link_is_sent_less(monkeypatch):
    async def rate(seconds):
        clock = iter([0.0, seconds[0], 10.0, 10.0 + seconds[1]])
        monkeypatch.setattr(machine_links.time, "perf_counter", lambda: next(clock))
        reader, sent = asyncio.StreamReader(), []
        reader.feed_data(b"{}\n{}\n")

        async def drain():
            pass

        return await machine_links._rate(reader, SimpleNamespace(write=sent.append, drain=drain)), sent

    def probe(length):
        return b'{"probe": %d}\n' % length + bytes(length)

    # 65,536 bytes in 2 s would be 9,830 in 0.3 s, and no fewer than the first are sent
    assert asyncio.run(rate([2.0, 4.0])) == (2**16 / 4, [probe(2**16), probe(2**16)])
    # in 0.125 s: 524,288 bytes a second, or 157,286 in 0.3 s
    assert asyncio.run(rate([0.125, 0.5])) == (157_286 / 0.5, [probe(2**16), probe(157_286)])
    assert asyncio.run(rate([0.001, 0.5])) == (2**22 / 0.5, [probe(2**16), probe(2**22)])


def test_an_answer_that_is_no_object_is_anothers():
    async def read(line):
        reader = asyncio.StreamReader()
        reader.feed_data(line)
        reader.feed_eof()
        return await machine_links._object(reader)

    assert asyncio.run(read(b'{"fine": true}\n')) == {"fine": True}
    for line in (b"[]\n", b"1\n", b"x\n", b""):
        with pytest.raises(machine_links.NOT_THE_CHECK):
            asyncio.run(read(line))


@pytest.mark.parametrize("shared", [True, False])
def test_two_machines_check_each_other_on_loopback(shared, tmp_path, monkeypatch):
    """The whole check but TensorFlow's sum, which its own test runs."""
    monkeypatch.setattr(machine_check, "HEARD_SHARE", 1.0 if shared else 0.1)
    held = [processes.hold_port(0) for _ in range(2)]
    workers = [f"localhost:{port.getsockname()[1]}" for port, _ in held]
    asked, folders = [], [tmp_path / "a", tmp_path / ("a" if shared else "b")]
    for folder in folders:
        folder.mkdir(exist_ok=True)

    async def reduces(check, peers):
        asked.append((check.name, {name: peer.ready for name, peer in peers.items()}))

    monkeypatch.setattr(machine_check.MachineCheck, "_all_reduce", reduces)

    async def both():
        checks = []
        for index, folder in enumerate(folders):
            text = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
            checks.append(machine_check.MachineCheck(text, folder, 60.0))
        await asyncio.gather(*(check.run() for check in checks))
        return checks

    checks = asyncio.run(both())
    for one in (one for pair in held for one in pair):
        one.close()
    for number, check in enumerate(checks):
        subjects = [finding.subject for finding in check.findings]
        assert subjects == ["names", "port", "reach", "lists", "versions", "clock", "folder"]
        said = {finding.subject: finding.said for finding in check.findings}
        assert said["names"] == "2 addresses are known"
        assert said["port"] == f"{workers[number].partition(':')[2]} is free on this machine"
        assert said["reach"].startswith(f"both ways: worker {1 - number} at ")
        assert check.fine == shared == (said["folder"] == f"{folders[number]} is shared")
    wanted = [("worker 0", {"worker 1": True}), ("worker 1", {"worker 0": True})]
    assert sorted(asked) == (wanted if shared else [])
    assert not any(list(folder.iterdir()) for folder in folders)


def test_a_port_that_is_taken_ends_a_machines_check(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        check = machine_check_of(f"localhost:{port}", "localhost:1")
        asyncio.run(check.run())
    assert str(check.findings[-1]) == (
        f"FAULT port: {port} of this machine cannot be used (Address already in use): end what uses it."
    )
    assert [finding.subject for finding in check.findings] == ["names", "port"]


def test_names_that_are_not_known_in_time(monkeypatch):
    released = threading.Event()

    def look_up(host, port):
        if host == "slow":
            released.wait()
        if host == "unknown":
            raise OSError

    monkeypatch.setattr(machine_check.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(machine_check, "NAME_SECONDS", 1.0)
    check = machine_check_of("known:1", "slow:2", "unknown:3", "known:4")
    assert check._names() == {"worker 0", "worker 3"}
    released.set()
    assert [*map(str, check.findings)] == [
        "FAULT names: worker 1's host 'slow' is not known to this machine.",
        "FAULT names: worker 2's host 'unknown' is not known to this machine.",
    ]


@pytest.mark.skipif(not HAS_TENSORFLOW, reason="needs TensorFlow")
def test_a_training_step_is_timed_beside_the_same_step_alone(monkeypatch):
    import tensorflow as tf

    rates, losses = [], []
    monkeypatch.setattr(communication, "ring_strategy", tf.distribute.get_strategy)
    monkeypatch.setattr(limited_links, "limit_rate", rates.append)
    monkeypatch.setattr(
        communication,
        "_time",
        lambda step, repeats, compute: losses.append((float(compute()), float(step()))) or {"repeats": repeats},
    )
    timings = communication.timed_training_steps(SimpleNamespace(index=0), [10, 20], 7)
    # 64 inputs, three layers of 512, 10 outputs: 33,280 + 2 x 262,656 + 5,130 parameters of 4 bytes
    assert timings == [{"buffer_bytes": 4 * 563_722, "repeats": 7}] * 2
    assert rates == [cluster.Link(10), cluster.Link(20)]
    (first_alone, first), (alone, together) = losses  # each step trains a model of its own
    assert alone < first_alone and together < first and 1 < together < 3


def test_an_all_reduce_is_timed_for_each_rate(monkeypatch):
    rates = []
    monkeypatch.setattr(communication, "ring_strategy", lambda: "ring")
    monkeypatch.setattr(communication, "all_reduce_step", lambda strategy, size: (strategy, size))
    monkeypatch.setattr(limited_links, "limit_rate", rates.append)
    monkeypatch.setattr(communication, "_time", lambda step, repeats: {"step": step, "repeats": repeats})
    assert communication.timed_all_reduces(None, [10, 20], [100, 50], 3) == [
        {"buffer_bytes": 400, "step": ("ring", 100), "repeats": 3},
        {"buffer_bytes": 200, "step": ("ring", 50), "repeats": 3},
    ]
    assert rates == [cluster.Link(10), cluster.Link(20)]


def test_who_watches_a_task_for_hangs(monkeypatch):
    asked = []
    monkeypatch.setattr(task, "watch", lambda *what, **how: asked.append(("watch", *what, how)) or "done")
    monkeypatch.setattr(task, "keep_record", lambda *what: asked.append(("keep", *what)))
    monkeypatch.setattr(task.recorder, "record", lambda *what: asked.append(("record", *what)))
    alone, served = cluster.Job(PROGRAM, hang_seconds=3), cluster.Job(PROGRAM, parameter_servers=1, hang_seconds=3)
    assert task._watch(alone, "folder", "worker 1", alone=True) == "done"
    assert task._watch(alone, "folder", "worker 1", alone=False)() is None
    assert task._watch(served, "folder", "worker 0", alone=True)() is None
    assert task._watch(cluster.Job(PROGRAM), "folder", "worker 0", alone=True)() is None
    assert asked == [
        ("record", "folder", "worker 1"),
        ("watch", "folder", "worker 1", 3, {"end": True}),
        ("record", "folder", "worker 1"),
        ("keep", "folder", "worker 1"),
        ("record", "folder", "worker 0"),
        ("keep", "folder", "worker 0"),
    ]


# Programs


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("epochs=2", "epochs", 2),
        ("word=hello", "word", "hello"),
        ("rates=[0.5, 1]", "rates", [0.5, 1]),
        ("a=b=c", "a", "b=c"),
        ("empty=", "empty", ""),
    ],
)
def test_an_argument_is_json_or_text(text, name, value):
    assert worker_program.name_and_value(text) == (name, value)


@pytest.mark.parametrize("text", ["epochs", "=2", "1st=2", "a b=2", ""])
def test_an_argument_without_a_name_is_refused(text):
    with pytest.raises(CourseError, match="takes NAME=VALUE, such as epochs=2, not"):
        worker_program.name_and_value(text)


def test_a_programs_imports_and_name():
    text = "import a.b, c\nfrom d.e import f\nfrom . import g\ndef h():\n    import i as j\n"
    program = WorkerProgram("h", text=text, file="train.py")
    assert program.imports() == {"a", "c", "d", "", "i"} and str(program) == "train.py:h"
    assert str(WorkerProgram("dumps", module="json")) == "json:dumps"
    assert WorkerProgram("dumps", module="json").load() is json.dumps
    assert PROGRAM.load().__globals__["__name__"] == "program"


def test_the_folder_that_a_command_is_typed_in_is_searched_first_and_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/lib"])
    worker_program.search_current_folder()
    worker_program.search_current_folder()
    assert sys.path == [str(tmp_path), "/lib"]


# The command


def test_a_commands_defaults_are_the_jobs(monkeypatch):
    parser = argparse.ArgumentParser()
    cluster_command.add_commands(parser)
    read = vars(parser.parse_args(["run", "train.py:train"]))
    assert read.pop("run") is cluster_command.run_here and read == {
        "way": "run",
        "program": "train.py:train",
        "folder": None,
        "json": False,
        "argument": [],
        "workers": 2,
        "parameter_servers": 0,
        "restarts": 0,
        "evaluator": False,
        "framework": "tensorflow",
        "cpus": None,
        "gpus": 0,
        "memory_gib": 1.0,
        "limit_seconds": 600.0,
        "hang_seconds": None,
    }
    read = vars(parser.parse_args(["check"]))
    assert read.pop("run") is cluster_command.check_machines
    assert read == {"way": "check", "config": None, "folder": None, "seconds": 20.0, "json": False}
    words = ["slurm", "a:b", "--folder", "/f", "--option=--x", "--option=--y", "--submit", "--wait", "--json"]
    read = vars(parser.parse_args(words))
    assert read["run"] is cluster_command.write_for_slurm and read["folder"] == Path("/f")
    assert read["option"] == ["--x", "--y"] and read["submit"] and read["wait"] and read["json"]
    read = vars(parser.parse_args(["slurm", "a:b", "--folder", "/f"]))
    assert read["option"] == [] and not read["submit"] and not read["wait"] and not read["json"]
    read = vars(parser.parse_args(["kubernetes", "a:b", "--name", "n", "--image", "i"]))
    assert read["run"] is cluster_command.print_for_kubernetes
    assert (read["name"], read["image"], read["claim"]) == ("n", "i", None)
    for way, act in (("run", "run_here"), ("check", "check_machines"), ("slurm", "write_for_slurm")):
        described = parser._subparsers._group_actions[0].choices[way]
        assert described.description == getattr(cluster_command, act).__doc__
        assert described.epilog.startswith(f"Example: course cluster {way} ")
    for words in ([], ["slurm", "a:b"], ["kubernetes", "a:b", "--name", "n"], ["kubernetes", "a:b", "--image", "i"]):
        with pytest.raises(SystemExit):
            parser.parse_args(words)
    for word in ("workers", "parameter-servers", "restarts", "cpus", "gpus"):
        assert vars(parser.parse_args(["run", "a:b", f"--{word}", "3"]))[word.replace("-", "_")] == 3
    for word in ("memory-gib", "limit-seconds", "hang-seconds"):
        assert vars(parser.parse_args(["run", "a:b", f"--{word}", "0.5"]))[word.replace("-", "_")] == 0.5


def test_a_command_makes_the_job_that_it_is_given():
    words = "--workers 3 --parameter-servers 1 --evaluator --restarts 2 --hang-seconds 9 --cpus 4 --gpus 5"
    words += " --memory-gib 6 --limit-seconds 7 --argument a=1 --argument b=x"
    parser = argparse.ArgumentParser()
    cluster_command.add_commands(parser)
    assert cluster_command._job(parser.parse_args(["run", "json:dumps", *words.split()])) == cluster.Job(
        "json:dumps",
        workers=3,
        parameter_servers=1,
        evaluator=True,
        restarts=2,
        hang_seconds=9.0,
        arguments={"a": 1, "b": "x"},
        resources=cluster.Resources(cpus=4, gpus=5, memory_gib=6.0, limit_seconds=7.0),
    )
    assert cluster_command._job(parser.parse_args(["run", "json:dumps", "--framework", "jax"])).framework == "jax"


class Report:
    summary, diagnosis = "Look at worker 1.", "why"

    def __init__(self, error=None):
        self.error, self.written = error, []

    def write(self, path):
        if self.error:
            raise self.error
        self.written.append(path)
        return Path("page.html")


def test_a_hang_is_shown_beside_the_results(tmp_path, monkeypatch, capsys):
    first, last = Report(), Report()
    done = cluster.Outcome({"worker 0": [1.5], "worker 1": "x"}, (), {}, (), 1, (first, last))
    ran = []
    monkeypatch.setattr(cluster_command, "run", lambda job, **how: ran.append(how) or done)
    assert main(["cluster", "run", "json:dumps", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr() == (
        "worker 0 returned [1.5]\nworker 1 returned 'x'\n",
        "Look at worker 1. page.html shows each task.\n",
    )
    assert ran[0]["folder"] == tmp_path and last.written == [tmp_path / "hang-report"] and not first.written
    ran[0]["show"]("worker 0 | a line")
    assert capsys.readouterr() == ("worker 0 | a line\n", "")
    done = cluster.Outcome({"worker 0": {1}}, (), {}, (), 1, (Report(OSError(30, "Read-only file system")),))
    assert main(["cluster", "run", "json:dumps", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"results": {"worker 0": "{1}"}, "restarts": 1}
    assert said.err == "Look at worker 1. Its page cannot be written here (Read-only file system).\n"
    ran[1]["show"]("worker 0 | a line")
    assert capsys.readouterr() == ("", "worker 0 | a line\n") and ran[1]["folder"] is None


def test_a_failed_run_writes_its_report_and_exits_with_1(monkeypatch, capsys):
    report = Report()

    def fails(job, **how):
        raise cluster.RunFailed("worker 1 failed", None, (), {}, (report,))

    monkeypatch.setattr(cluster_command, "run", fails)
    assert main(["cluster", "run", "json:dumps"]) == 1
    assert capsys.readouterr() == ("", "Look at worker 1. page.html shows each task.\nRunFailed: worker 1 failed\n")
    assert report.written == [Path("hang-report")]


def test_slurms_answer_in_words_and_in_json(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(slurm, "submit", lambda script, wait: asked.append((script, wait)) or 42)
    monkeypatch.setattr(slurm, "read_results", lambda job, folder: {"worker 0": folder.name})
    words = ["cluster", "slurm", "json:dumps", "--folder", str(tmp_path / "run 1")]
    script = tmp_path / "run 1" / "batch.sh"
    assert main(words) == 0 and not asked
    assert capsys.readouterr().out == f"wrote {script}; submit it with: sbatch '{script}'\n"
    assert main([*words, "--submit"]) == 0
    assert capsys.readouterr().out == "Slurm's job 42\n"
    assert main([*words, "--wait"]) == 0
    assert capsys.readouterr().out == "Slurm's job 42\nworker 0 returned 'run 1'\n"
    assert asked == [(script, False), (script, True)]
    assert main([*words, "--wait", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"script": str(script), "job": 42, "results": {"worker 0": "run 1"}}

    def fails(job, folder):
        raise cluster.RunFailed("no", None, (), {})

    monkeypatch.setattr(slurm, "read_results", fails)
    assert main([*words, "--wait"]) == 1
    assert capsys.readouterr() == ("", "RunFailed: no\n")
