"""The batch script on a real Slurm of two nodes: the program unchanged, the result the local run's."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import two_node_slurm

from course_lib import cluster
from course_lib.cluster import slurm
from course_lib.errors import CourseError


def places(task, start):
    task.report(started=1)
    return {"name": task.name, "attempt": task.attempt, "addresses": dict(task.addresses), "start": start}


def fails_first(task):
    marker = task.folder / f"{task.index} was here"
    if task.index == 1 and not marker.exists():
        marker.touch()
        raise ValueError("lost its node")
    return task.attempt


def waits_first(task):
    import threading

    if task.attempt == 0 and task.index == 1:
        threading.Event().wait()
    return task.attempt


def fails(task):
    import threading
    import time

    if task.index == 0:
        print("its last words")
        (task.folder / "said").touch()
        threading.Event().wait()
    while not (task.folder / "said").exists():
        time.sleep(0.05)
    raise ValueError(f"{task.name} has no data")


def succeeds_once(task):
    marker = task.folder / f"{task.index} was here"
    if marker.exists():
        raise ValueError("once is enough")
    marker.touch()
    return task.name


def train(task, steps):
    import keras
    import tensorflow as tf

    from course_lib import compare, data, models, training

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    images, labels = data.arrays("digits", "train")
    with strategy.scope():
        model = models.mlp((8, 8, 1), classes=10)
        optimizer = keras.optimizers.Adam(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    step = training.replicated_step(strategy, model, optimizer, loss)
    batches = data.epoch_batches(images, labels, 64, epoch=0).take(steps)
    losses = [float(step(batch)) for batch in strategy.experimental_distribute_dataset(batches)]
    return compare.Run.of(task.name, model, losses)


def count(task, updates):
    """On the chief of parameter servers: asynchronous additions to a variable on a server."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0)
    add = tf.function(lambda: total.assign_add(1))
    for _ in range(updates):
        coordinator.schedule(add)
    coordinator.join()
    return int(total.numpy())


@pytest.fixture(scope="module")
def two_nodes():
    if os.environ.get("CI") != "true":
        pytest.skip("slow: run by .ci/run")
    if why := two_node_slurm.missing():
        pytest.fail(f"a real Slurm is needed: {why}")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, two_node_slurm.two_nodes(Path(folder)):
        with pytest.MonkeyPatch.context() as patch:  # sbatch passes the environment on: the nodes import this module
            patch.setenv(
                "PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), str(Path(cluster.__file__).parents[2])])
            )
            yield


def run(job: cluster.Job, folder: Path) -> dict:
    slurm.submit(slurm.write_batch(job, folder), wait=True)
    return slurm.read_results(job, folder)


def test_the_script_asks_for_what_the_job_asks_for(tmp_path):
    resources = cluster.Resources(cpus=4, gpus=2, memory_gib=8, limit_seconds=3000)
    job = cluster.Job(places, workers=3, evaluator=True, restarts=1, resources=resources)
    script = slurm.write_batch(job, tmp_path, python="/opt/python", options=["--partition=gpu"])
    wanted = "--ntasks=4 --cpus-per-task=4 --mem-per-cpu=2048M --gpus-per-task=2 --time=50 --requeue --partition=gpu"
    directives = [
        line.removeprefix("#SBATCH ") for line in script.read_text().splitlines() if line.startswith("#SBATCH")
    ]
    assert set(wanted.split()) <= set(directives)
    assert "seq 0 1" in script.read_text() and "SRUN_CPUS_PER_TASK=4" in script.read_text()
    assert "/opt/python -u -m course_lib.cluster" in script.read_text()
    assert cluster.Job.from_json((tmp_path / "job.json").read_text()) == job
    subprocess.run(["bash", "-n", script], check=True)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CourseError, match="cannot be written"):
        slurm.write_batch(cluster.Job(places), tmp_path / "file")


def test_a_local_link_is_refused(tmp_path):
    with pytest.raises(CourseError, match="leave link out"):
        slurm.write_batch(cluster.Job(places, link=cluster.Link(100)), tmp_path)


def test_the_cause_is_the_last_attempts(tmp_path):
    for attempt, message in enumerate(("the first", "the last")):
        folder = tmp_path / "reports" / f"attempt {attempt}"
        folder.mkdir(parents=True)
        last = {"event": "failed", "task": "worker 0", "error": "ValueError", "message": message, "traceback": ""}
        (folder / "worker 0.jsonl").write_text(json.dumps(last) + "\n")
    assert "ValueError: the last" in str(slurm._failure(tmp_path))


def test_without_slurm_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CourseError, match="no sbatch.*copy the folder"):
        slurm.submit(tmp_path / "batch.sh")


def test_each_task_identifies_itself(two_nodes, tmp_path, monkeypatch):
    """In a folder with blanks, whatever the submitting shell says of another job."""
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}})
    )
    results = run(cluster.Job(places, workers=2, arguments={"start": 3}), tmp_path / "my job")
    assert [result["name"] for result in results.values()] == list(results) == ["worker 0", "worker 1"]
    first, second = (result["addresses"] for result in results.values())
    assert first == second and len(set(first.values())) == 2
    assert all(result["start"] == 3 and result["attempt"] == 0 for result in results.values())
    assert '"started": 1' in (tmp_path / "my job" / "reports" / "attempt 0" / "worker 1.jsonl").read_text()


def test_two_nodes_equal_the_local_run(two_nodes, tmp_path):
    job = cluster.Job(train, arguments={"steps": 5})
    slurms, local = run(job, tmp_path)["worker 1"], cluster.run(job).results["worker 1"]
    np.testing.assert_allclose(slurms.losses, local.losses, rtol=1e-6)
    for path, weight in local.weights.items():
        np.testing.assert_allclose(slurms.weights[path], weight, rtol=1e-6, err_msg=path)


def test_servers_leave_with_the_coordinator(two_nodes, tmp_path):
    job = cluster.Job(
        count, workers=1, parameter_servers=1, arguments={"updates": 20}, resources=cluster.Resources(memory_gib=1.0)
    )
    script = slurm.write_batch(job, tmp_path, options=["--overcommit"])  # three tasks on two cores
    slurm.submit(script, wait=True)
    assert slurm.read_results(job, tmp_path) == {"chief 0": 20}


def test_a_lost_task_starts_the_job_again(two_nodes, tmp_path):
    assert run(cluster.Job(fails_first, restarts=1), tmp_path) == {"worker 0": 1, "worker 1": 1}
    assert "lost its node" in (tmp_path / "task-1.log").read_text()


def test_a_job_that_stands_still_leaves_a_report_and_starts_again(two_nodes, tmp_path):
    assert run(cluster.Job(waits_first, restarts=1, hang_seconds=2), tmp_path) == {"worker 0": 1, "worker 1": 1}
    report = (tmp_path / "hang-report.txt").read_text()
    assert "Look at worker 1 (lock)" in report and "worker 0  returned" in report


def test_a_failure_is_named_though_the_other_task_waits_for_ever(two_nodes, tmp_path):
    job = cluster.Job(fails)
    with pytest.raises(cluster.RunFailed, match="worker 1 failed: ValueError: worker 1 has no data") as failed:
        run(job, tmp_path)
    assert failed.value.cause.traceback.startswith("Traceback") and "in fails" in failed.value.cause.traceback
    assert (
        "its last words" in (tmp_path / "task-0.log").read_text()
        and "has no data" in (tmp_path / "task-1.log").read_text()
    )


def test_a_second_submission_shows_nothing_of_the_first(two_nodes, tmp_path):
    job = cluster.Job(succeeds_once, workers=1)
    assert run(job, tmp_path) == {"worker 0": "worker 0"}
    with pytest.raises(cluster.RunFailed, match="once is enough"):
        run(job, tmp_path)
    with pytest.raises(cluster.RunFailed, match="once is enough"):
        slurm.read_results(job, tmp_path)


def test_results_that_are_not_there_are_one_line(tmp_path):
    with pytest.raises(CourseError, match="no result of worker 0, worker 1: the job waits, runs"):
        slurm.read_results(cluster.Job(places), tmp_path)
