"""Local clusters: real processes that are watched, killed and recovered, and that leave nothing behind.

Most programs here import no framework, so that a cluster takes a fraction of a second.
`chaos_cluster.py` repeats the random kills at the end of this file at length.
"""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chaos_cluster
import numpy as np
import psutil
import pytest
from chaos_cluster import ours
from conftest import HAS_TENSORFLOW
from installed import need

from course_lib import cluster
from course_lib.cluster import local, outcome, processes, run_state, start_supervisor, task_process
from course_lib.cluster.worker_program import WorkerProgram
from course_lib.errors import CourseError

ENOUGH_SECONDS = 60  # a bound on waits that end by events; nothing asserts a time
needs_tensorflow = pytest.mark.skipif(not HAS_TENSORFLOW, reason="needs TensorFlow")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="rests on Linux' process control")
both_ways = pytest.mark.parametrize(
    "forks", [False, pytest.param(True, marks=needs_linux)], ids=["python", "fork"], indirect=True
)


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """Every temporary folder goes below tmp_path, where nothing may be left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield tmp_path
    assert_nothing_left(tmp_path)


@pytest.fixture
def forks(request, monkeypatch):
    """Tasks as Pythons of their own, or as forks; of a server that imports nothing, as these programs need nothing."""
    monkeypatch.setattr(start_supervisor, "can_fork", lambda job: request.param)
    monkeypatch.setattr(start_supervisor, "modules", lambda job: ())


def job(program, workers=2, seconds=ENOUGH_SECONDS, task_seconds=None, **fields) -> cluster.Job:
    resources = cluster.Resources(memory_gib=0.05, limit_seconds=seconds, task_seconds=task_seconds)
    return cluster.Job(program, workers=workers, resources=resources, **fields)


def run(program, *, folder=None, ports=(), show=None, **fields) -> cluster.Outcome:
    return cluster.run(job(program, **fields), folder=folder, ports=ports, show=show)


def start(program, *, folder=None, ports=(), show=None, **fields) -> cluster.LocalCluster:
    return cluster.start(job(program, **fields), folder=folder, ports=ports, show=show)


def assert_nothing_left(root: Path, addresses=()) -> None:
    assert ours(root) == []
    assert list(root.glob("course-cluster-*")) == []
    for address in addresses:
        with socket.socket() as probe:  # without reuse: fails if anyone listens on the port, or holds it
            probe.bind(("", int(address.rpartition(":")[2])))


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message and "Traceback" not in message
    return message


def _waits() -> WorkerProgram:
    def waits(task):
        import threading

        task.report(ready=1)
        threading.Event().wait()

    return WorkerProgram.of(waits)


waits = _waits()  # as text: a task that imports this module would start its devices


# What comes back


@both_ways
def test_results_come_back_as_values(forks):
    def program(task, factor, names):
        return {"index": task.index * factor, "names": names, "workers": task.workers, "chief": task.is_chief}

    done = run(program, workers=3, arguments={"factor": 2.5, "names": ["a"]})
    assert list(done.results) == ["worker 0", "worker 1", "worker 2"]
    assert done.results["worker 2"] == {"index": 5.0, "names": ["a"], "workers": 3, "chief": False}
    assert done.result == {"index": 0.0, "names": ["a"], "workers": 3, "chief": True}
    assert repr(done) == "Outcome: worker 0, worker 1, worker 2 returned" and done.restarts == 0
    assert {(end.task, end.code, end.returned, end.failed) for end in done.exits} == {
        (f"worker {i}", 0, True, False) for i in range(3)
    }


def test_arrays_come_back_and_nothing_of_an_earlier_run_does(root):
    def program(task, rows):
        import numpy as np

        if rows == 0:
            raise ValueError("no rows")
        return np.full((rows, 2), task.index)

    kept = root / "kept"
    np.testing.assert_array_equal(run(program, folder=kept, arguments={"rows": 3}).results["worker 1"], np.ones((3, 2)))
    assert len(list(kept.glob("results/*.pickle"))) == 2
    with pytest.raises(cluster.RunFailed):
        run(program, folder=kept, arguments={"rows": 0})
    assert list(kept.glob("results/*.pickle")) == []


@both_ways
def test_reports_lines_and_exits_are_events(forks):
    def program(task):
        print("ready", task.name)
        for step in range(5):
            task.report(step=step, loss=1 / (step + 1), phase="train")
        print("to stderr", file=__import__("sys").stderr)

    shown = []
    with start(program, show=shown.append) as running:
        report = running.wait_report("worker 1", step=3)
        assert (report.task, report.attempt, report.values) == (
            "worker 1",
            0,
            {"step": 3, "loss": 0.25, "phase": "train"},
        )
        assert running.wait_report("worker 1", phase="train").values["step"] == 0
        assert running.wait_line("worker 0", "ready") == "ready worker 0"
        done = running.outcome()
        assert running.outcome() is done
    assert [report.values["step"] for report in done.reports if report.task == "worker 0"] == [0, 1, 2, 3, 4]
    assert sorted(shown) == ["worker 0 | ready worker 0", "worker 1 | ready worker 1"]  # stderr is kept, not shown
    assert sorted(done.log["worker 0"].splitlines()) == ["ready worker 0", "to stderr"]


@both_ways
def test_logs_are_kept_in_the_folder_over_attempts(root, forks):
    def program(task):
        print("attempt", task.attempt, flush=True)
        if task.attempt == 0:
            raise OSError("again")

    done = run(program, workers=1, restarts=1, folder=root / "kept")
    log = (root / "kept" / "logs" / "worker 0.log").read_text()
    assert log.count("attempt 0") == log.count("attempt 1") == 1
    assert log.rstrip("\n") == done.log["worker 0"]
    assert not ours(root)


def test_scalars_of_frameworks_are_numbers_in_a_report_and_arrays_are_refused():
    def program(task):
        import numpy as np

        task.report(loss=np.float32(0.5), step=np.int64(3))
        task.report(loss=np.zeros(3))

    with pytest.raises(cluster.RunFailed) as error, start(program, workers=1) as running:
        assert running.wait_report("worker 0", step=3).values == {"loss": 0.5, "step": 3.0}
        running.outcome()
    assert "a report holds numbers and strings" in one_line(error)


def test_reports_from_many_threads_arrive_whole():
    def program(task):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda step: task.report(step=step, text="x" * 2000), range(400)))

    done = run(program, workers=1)
    assert sorted(report.values["step"] for report in done.reports) == list(range(400))


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_wait_raises_when_what_it_waits_for_can_no_longer_come(restarts):
    def program(task):
        if task.index == 1:
            task.report(step=1)
            return
        (task.folder / "never").exists()
        __import__("threading").Event().wait()

    with (
        start(program) as running,
        pytest.raises(CourseError, match="worker 1 cannot report step=2: its program has returned"),
    ):
        running.wait_report("worker 1", step=2)
    with start(program) as running:
        running.kill("worker 1")
        ended = running.wait_exit("worker 1")
        assert ended.asked and ended.code == -9 and not ended.failed
        with pytest.raises(CourseError, match="worker 1 cannot print 'x': worker 1 was ended by SIGKILL on request"):
            running.wait_line("worker 1", "x")
        with pytest.raises(CourseError, match="stopped"):
            running.wait_report("worker 0", step=1)


def test_a_wait_outlives_the_attempt_that_a_restart_will_repeat():
    def program(task):
        if task.attempt == 0:
            raise OSError("first")
        task.report(step=task.attempt)

    with start(program, workers=1, restarts=1) as running:
        assert running.wait_report("worker 0", step=1).attempt == 1
        assert [running.wait_exit("worker 0").failed for _ in range(2)] == [True, False]
        with pytest.raises(
            CourseError, match="all programs returned, and worker 0 end once more did not happen|cannot end once more"
        ):
            running.wait_exit("worker 0")


def test_all_returned_and_a_line_never_came():
    def program(task):
        print("something")

    with start(program) as running, pytest.raises(CourseError, match="all programs returned") as error:
        running.wait_line("worker 0", "else")
    assert "worker 0 print 'else'" in one_line(error)


def test_a_chief_coordinates_and_its_result_is_the_only_one():
    def program(task):
        return task.name, task.type, sorted(task.addresses), task.is_chief

    described = cluster.Job(program, workers=2, parameter_servers=1, evaluator=True)
    assert described.tasks == ("chief 0", "worker 0", "worker 1", "ps 0", "evaluator 0")
    assert described.programs == ("chief 0", "evaluator 0")
    addresses = {name: f"localhost:{number}" for number, name in enumerate(described.tasks)}
    config = described.tf_config("worker 1", addresses)
    assert config == {
        "cluster": {"chief": ["localhost:0"], "worker": ["localhost:1", "localhost:2"], "ps": ["localhost:3"]},
        "task": {"type": "worker", "index": 1},
    }
    assert cluster.Job.from_json(described.as_json()) == described


def test_the_environment_is_the_jobs_and_not_a_foreign_clusters(monkeypatch):
    program = WorkerProgram(
        "program",
        text=textwrap.dedent("""
        def program(task):
            import json, os, sys
            return json.loads(os.environ["TF_CONFIG"])["task"], os.environ["HELLO"], sys.flags.hash_randomization
    """),
    )
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["elsewhere:1"]}}')
    done = run(program, environment={"HELLO": "there", "PYTHONHASHSEED": "0"})
    # A hash seed counts before Python starts.
    assert done.results["worker 1"] == ({"type": "worker", "index": 1}, "there", 0)

    def other(task):
        import os

        return os.environ.get("TF_CONFIG"), os.environ["KERAS_DISTRIBUTION_PROCESS_ID"], os.environ["KERAS_BACKEND"]

    assert run(other, framework="jax").results["worker 1"] == (None, "1", "jax")


@pytest.mark.parametrize(
    "here, gpus, seen", [(None, 0, ["", ""]), (None, 2, ["0,1", "2,3"]), ("5,7", 1, ["5", "7"]), ("5,7", 0, ["", ""])]
)
def test_a_task_sees_its_own_gpus_alone(monkeypatch, here, gpus, seen):
    def program(task):
        import os

        return os.environ["CUDA_VISIBLE_DEVICES"]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if here:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", here)
    described = cluster.Job(program, resources=cluster.Resources(gpus=gpus, memory_gib=0.05))
    assert list(cluster.run(described, show=None).results.values()) == seen


# How a failure is reported


@both_ways
def test_a_failing_tasks_own_traceback_is_named_first_even_when_another_fails_before_it(forks):
    def program(task):
        import pathlib
        import time

        class UnavailableError(Exception):
            pass

        if task.index == 0:  # what a collective says when its peer fails
            raise UnavailableError("connection reset by peer")
        log = pathlib.Path(task.folder.parent / "logs" / "worker 0.log")
        while not log.exists() or "reset" not in log.read_text():
            pass  # until worker 0 has started and said so
        time.sleep(0.5)  # longer than the end of worker 0 takes: with less, the test is easier
        weights = {}
        return weights["missing"]

    with pytest.raises(cluster.RunFailed) as error:
        run(program)
    assert one_line(error) == "worker 1 failed: KeyError: 'missing'"
    assert error.value.cause.task == "worker 1"
    assert 'return weights["missing"]' in error.value.cause.traceback
    assert "run_task" not in error.value.cause.traceback  # the launcher's frames say nothing
    shown = error.value._render_traceback_()
    assert shown[0] == "worker 1:" and shown[-1] == "RunFailed: worker 1 failed: KeyError: 'missing'"
    assert "connection reset" in error.value.log["worker 0"]


@both_ways
def test_a_task_lost_from_outside_is_the_cause_of_its_peers_errors(forks):
    def program(task):
        import os
        import signal

        class InternalError(Exception):
            pass

        if task.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raise InternalError("peer lost")

    with pytest.raises(cluster.RunFailed) as error:
        run(program)
    assert one_line(error).startswith(
        "worker 1 was ended by SIGKILL from outside; when memory runs out, the system does that"
    )


@both_ways
def test_a_worker_that_exits_at_once(forks):
    def program(task, code):
        import os

        print("the last line", flush=True)
        if task.index == 1:
            os._exit(code)
        __import__("threading").Event().wait()

    for code in (0, 3):
        with pytest.raises(cluster.RunFailed) as error:
            run(program, arguments={"code": code})
        expected = f"worker 1 ended with exit code {code} before its program returned; its last line: the last line"
        assert one_line(error) == expected


@both_ways
def test_a_crash_is_named_with_its_last_line(forks):
    def program(task):
        import ctypes

        ctypes.string_at(0)

    with pytest.raises(cluster.RunFailed) as error:
        run(program, workers=1)
    assert one_line(error).startswith(
        "worker 0 ended with signal 11 (Segmentation fault) before its program returned; its last line:"
    )


@both_ways
def test_sys_exit_is_a_failure(forks):
    def program(task):
        raise SystemExit(0)

    with pytest.raises(cluster.RunFailed, match="worker 0 failed: SystemExit: 0"):
        run(program, workers=1)


def test_a_failure_after_the_last_restart_counts_them():
    def program(task):
        raise ValueError(f"\n\nattempt {task.attempt}\nmore")

    with pytest.raises(cluster.RunFailed) as error:
        run(program, workers=1, restarts=2)
    assert one_line(error) == "worker 0 failed: ValueError: attempt 2 (after 2 of 2 restarts)"
    assert [end.attempt for end in error.value.exits] == [0, 1, 2]


@both_ways
def test_a_run_that_takes_too_long_names_who_and_what_was_last_reported(forks):
    def program(task):
        if task.index == 0:
            return
        if task.index == 1:
            task.report(step=3, loss=0.5)
        __import__("threading").Event().wait()

    with pytest.raises(cluster.RunFailed) as error:
        run(program, workers=3, seconds=1.5)
    assert one_line(error) == (
        "worker 1, worker 2 did not finish within the run's 1.5 s; "
        "last reports: worker 0 nothing; worker 1 step=3, loss=0.5; worker 2 nothing"
    )
    assert error.value.cause is None


def test_a_task_that_takes_too_long_is_named():
    def program(task):
        if task.index == 1:
            __import__("threading").Event().wait()
        return 1

    with pytest.raises(
        cluster.RunFailed, match=r"^worker 1 did not finish within its 1 s; last reports: worker 0 nothing"
    ):
        run(program, task_seconds=1.0)


def test_a_result_that_cannot_travel():
    def program(task):
        return lambda: 1

    with pytest.raises(cluster.RunFailed, match="the program's result cannot travel back"):
        run(program, workers=1)


def test_a_result_that_cannot_be_read_here():
    def program(task):
        class Result:
            def __reduce__(self):
                return (__import__, ("no_such_module_here",))

        return Result()

    with pytest.raises(CourseError, match="the result of worker 0 cannot be read here .ModuleNotFoundError"):
        run(program, workers=1)


def test_an_error_that_was_reported_counts_though_a_kill_came_before_the_exit():
    task = task_process.TaskProcess("worker 0", 0, None)
    task.asked, task.code = True, -signal.SIGKILL
    assert task.wanted
    task.error = "ValueError"
    assert not task.wanted


def test_exits_of_earlier_attempts_are_not_blamed():
    exits = [
        outcome.Exit("worker 0", 0, 1, False, error="ValueError"),
        outcome.Exit("worker 1", 0, -9, True),
        outcome.Exit("worker 1", 1, 1, False, error="UnavailableError"),
        outcome.Exit("worker 0", 1, -9, True, error="KeyError"),  # reported, and killed as it ended
    ]
    assert outcome.first_cause(exits) is exits[3]
    assert outcome.first_cause(exits[:3]) is exits[0]
    assert outcome.first_cause(exits[1:2]) is None


# Bad input


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"arguments": {"x": np.zeros(2)}}, "arguments travel to other processes as JSON"),
        ({"arguments": (lambda d: d.update(me=d) or d)({})}, "arguments travel to other processes as JSON"),
        ({"program": lambda task: 1}, "a program is a function made with def"),
        ({"program": "no_such_module:main"}, "'no_such_module:main' cannot be imported"),
        ({"program": "json:nothing"}, "the module json has no function 'nothing'"),
        ({"program": "main"}, '"module:function" or "file.py:function", not \'main\''),
        ({"program": "missing.py:main"}, "the program missing.py cannot be read"),
        ({"environment": {"TF_CONFIG": "{}"}}, "TF_CONFIG is written for each task"),
        ({"environment": {"OMP_NUM_THREADS": 1}}, "environment maps text to text"),
        ({"workers": 0}, "needs workers of at least 1"),
        ({"framework": "torch"}, "tensorflow, jax, not 'torch'"),
        ({"framework": "jax", "parameter_servers": 1}, "Keras on JAX has no parameter servers"),
    ],
)
def test_a_job_that_cannot_work_is_refused_in_one_line(fields, message):
    with pytest.raises(CourseError) as error:
        cluster.Job(**{"program": waits, **fields})
    assert message in one_line(error)


@pytest.mark.parametrize(
    "fields", [{"cpus": 0}, {"memory_gib": 0}, {"limit_seconds": -1.0}, {"task_seconds": 0}, {"gpus": -1}]
)
def test_resources_out_of_range_are_named(fields):
    with pytest.raises(CourseError, match=next(iter(fields))):
        cluster.Resources(**fields)


def test_a_program_that_needs_the_notebooks_names_is_refused_with_them():
    def program(task):
        def inner():
            return [np.zeros(size) for size in task.sizes if size in allowed]  # noqa: F821

        return inner, textwrap

    with pytest.raises(CourseError, match="program uses allowed, np, textwrap, which other processes don't have"):
        cluster.Job(program)


def test_a_file_names_its_functions(root):
    (root / "train.py").write_text("import json\ndef main(task):\n    print(json.dumps(1))\n    return 7\n")
    assert run(f"{root}/train.py:main", workers=1).result == 7
    for name in ("print", "json", "other"):
        with pytest.raises(CourseError, match=f"defines no '{name}'"):
            cluster.Job(f"{root}/train.py:{name}")
    (root / "broken.py").write_text("def main(:\n")
    with pytest.raises(CourseError, match="broken.py cannot be read"):
        cluster.Job(f"{root}/broken.py:main")


def test_more_workers_than_memory_allows(monkeypatch):
    monkeypatch.setattr(local, "_free_memory_bytes", lambda: 5 * 2**30)
    with pytest.raises(CourseError) as error:
        cluster.start(cluster.Job(waits, workers=4, resources=cluster.Resources(memory_gib=2)))
    assert "4 tasks of 2 GiB need 8.0 GiB and 5.0 GiB of memory are free: use at most 2 tasks" in one_line(error)
    monkeypatch.undo()
    assert 0 < local._free_memory_bytes() <= psutil.virtual_memory().total


def test_windows_gets_one_line(monkeypatch):
    described = job(waits)
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(CourseError, match="need Linux or macOS; on Windows open the course in WSL or in Colab"):
        cluster.start(described)


@both_ways
def test_ports_that_are_taken_or_too_many(root, forks):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(CourseError) as error:
            start(waits, workers=1, ports=[number])
        assert f"port {number} cannot be used (Address already in use): name a free one" in one_line(error)
    assert_nothing_left(root)
    for ports in ([1, 2, 3], [0, 20000], [20000, 65536]):
        with pytest.raises(CourseError, match="2 tasks need 2 ports from 1 to 65535"):
            start(waits, ports=ports)
    with start(waits, workers=1) as first:
        number = int(first.addresses["worker 0"].rpartition(":")[2])
        with pytest.raises(CourseError, match=f"port {number} cannot be used"):
            start(waits, workers=1, ports=[number])
    with start(waits, workers=1, ports=[number]) as again:
        assert again.addresses == {"worker 0": f"localhost:{number}"}


def test_a_folder_has_one_cluster_at_a_time(root):
    with start(waits, workers=1, folder=root / "kept") as running:
        with pytest.raises(CourseError, match="another cluster runs in .*kept: stop it first"):
            start(waits, workers=1, folder=root / "kept")
        assert running.wait_report("worker 0")
    start(waits, workers=1, folder=root / "kept").stop()


def test_an_unknown_task_is_refused_and_the_cluster_goes_on():
    with start(waits) as running:
        for act in (running.kill, running.restart, running.wait_report, running.wait_exit):
            with pytest.raises(CourseError, match="this job has the tasks worker 0, worker 1, and no 'worker 2'"):
                act("worker 2")
        assert running.wait_report("worker 0")
        assert repr(running) == "Cluster: worker 0, worker 1 running"


# Kill, pause, resume, restart, recover


@both_ways
def test_a_killed_task_can_be_restarted_at_its_address(forks):
    def program(task):
        task.report(attempt=task.attempt, address=task.addresses[task.name])
        (task.folder / task.name).touch()
        if task.index == 1 and task.attempt == 1:
            return "second"
        while not all((task.folder / f"worker {i}").exists() for i in range(2)) or (task.index == 1):
            pass
        return "first"

    with start(program) as running:
        first = running.wait_report("worker 1")
        running.kill("worker 1")
        assert running.wait_exit("worker 1").asked
        pid = running.pids["worker 1"]
        running.restart("worker 1")
        assert running.pids["worker 1"] != pid
        second = running.wait_report("worker 1", attempt=1)
        assert second.values["address"] == first.values["address"]
        assert running.outcome().results == {"worker 0": "first", "worker 1": "second"}


def test_the_only_task_can_be_killed_and_restarted():
    def program(task):
        if task.attempt == 0:
            __import__("threading").Event().wait()
        return task.attempt

    with start(program, workers=1) as running:
        running.kill("worker 0")
        assert running.wait_exit("worker 0").asked
        running.restart("worker 0")
        assert running.outcome().result == 1


@both_ways
def test_a_restart_right_after_a_kill_and_right_after_the_start(forks):
    def program(task, last):
        if task.attempt < last:
            __import__("threading").Event().wait()
        return task.attempt

    with start(program, workers=1, arguments={"last": 3}) as running:
        running.restart("worker 0")
        running.restart("worker 0")
        running.restart("worker 0")
        assert running.wait_exit("worker 0").attempt == 0
        assert running.outcome().result == 3
    with start(program, arguments={"last": 1}) as running:
        running.kill("worker 1")
        running.restart("worker 1")
        running.kill("worker 0")
        running.restart("worker 0")
        assert running.outcome().results == {"worker 0": 1, "worker 1": 1}


@both_ways
@needs_linux
def test_a_paused_task_stands_still_until_it_is_resumed(forks):
    with start(waits) as running:
        running.wait_report("worker 1")
        process = psutil.Process(running.pids["worker 1"])
        running.pause("worker 1")
        while process.status() != psutil.STATUS_STOPPED:  # the kernel stops its threads one by one
            pass
        running.resume("worker 1")
        while process.status() == psutil.STATUS_STOPPED:
            pass
        running.pause("worker 1")
        running.kill("worker 1")  # also when paused
        assert running.wait_exit("worker 1").code == -9
        with pytest.raises(CourseError, match="worker 1 cannot pause: worker 1 has ended"):
            running.pause("worker 1")
        running.kill("worker 1")  # it stays ended


@both_ways
def test_a_program_that_ignores_signals_is_killed(forks):
    def program(task):
        import signal
        import threading

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        task.report(deaf=1)
        threading.Event().wait()

    with start(program) as running:
        running.wait_report("worker 0", deaf=1)
        process = psutil.Process(running.pids["worker 0"])
    assert not process.is_running()


@both_ways
def test_a_loss_restarts_the_whole_job(forks):
    def program(task):
        import threading

        task.report(attempt=task.attempt)
        if task.attempt == 0:
            threading.Event().wait()
        return task.attempt

    with start(program, restarts=2) as running:
        running.wait_report("worker 0")
        running.kill("worker 1")
        done = running.outcome()
    assert done.results == {"worker 0": 1, "worker 1": 1} and done.restarts == 1
    assert repr(done).endswith("after 1 restarts")
    assert not any(end.failed for end in done.exits)


@pytest.mark.parametrize(
    "lost, repeated",
    [
        ("worker 1", ["worker 1"]),
        ("evaluator 0", ["evaluator 0"]),
        ("ps 0", ["chief 0", "worker 0", "worker 1", "ps 0", "evaluator 0"]),
    ],
)
def test_who_is_started_again_after_whom(lost, repeated):
    """The parameter servers are TensorFlow's; killed before they have imported it, they need not run."""
    described = job(waits, parameter_servers=1, evaluator=True, restarts=1)
    with cluster.start(described, show=None) as running:
        before = dict(running.pids)
        running.kill(lost)
        assert running.wait_exit(lost).asked
        with running._state.changed:  # no public call waits for a restart that nobody asked for
            assert running._state.changed.wait_for(
                lambda: {t for t in before if running.pids[t] != before[t]} >= set(repeated), 60
            )
        assert [task for task in described.tasks if running.pids[task] != before[task]] == repeated


def test_a_task_killed_after_it_returned_still_counts():
    def program(task, go):
        if task.index == 0:
            return "kept"
        while not __import__("os").path.exists(go):
            pass
        return "later"

    with tempfile.TemporaryDirectory() as folder, start(program, arguments={"go": f"{folder}/go"}) as running:
        with running._state.changed:
            assert running._state.changed.wait_for(lambda: "worker 0" in running._state.returned, 60)
        running.kill("worker 0")
        ended = running.wait_exit("worker 0")
        assert ended.returned and not ended.failed
        Path(folder, "go").touch()
        assert running.outcome().results == {"worker 0": "kept", "worker 1": "later"}


def test_one_killed_and_the_other_returned_ends_the_run():
    def program(task, go):
        if task.index == 1:
            __import__("threading").Event().wait()
        while not __import__("os").path.exists(go):
            pass

    with tempfile.TemporaryDirectory() as folder, start(program, arguments={"go": f"{folder}/go"}) as running:
        running.kill("worker 1")
        running.wait_exit("worker 1")
        Path(folder, "go").touch()
        with pytest.raises(
            cluster.RunFailed, match="^worker 1 was killed, and no task is left to wait for; last reports"
        ):
            running.outcome()


def test_a_kill_after_the_last_restart_ends_the_run():
    def program(task):
        task.report(attempt=task.attempt)
        __import__("threading").Event().wait()

    with start(program, restarts=1) as running:
        for attempt in (0, 1):
            running.wait_report("worker 0", attempt=attempt)
            running.kill("worker 1")
        with pytest.raises(
            cluster.RunFailed, match=r"^worker 1 was killed; last reports: .* \(after 1 of 1 restarts\)$"
        ):
            running.outcome()


@pytest.mark.parametrize("way", [["env", "-i"], ["setsid"]], ids=["without its environment", "in its own group"])
def test_a_loss_ends_what_the_lost_task_had_started_wherever_it_went(way):
    def program(task, way):
        import os
        import subprocess
        import sys
        import threading

        if task.attempt == 0:
            # Memory that the system takes a while to clear away.
            large = "x = bytearray(2**30); print(flush=True); import time; time.sleep(1000)"
            started = subprocess.Popen(
                [*way, sys.executable, "-c", large], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            started.stdout.readline()
            task.report(pid=started.pid)
            threading.Event().wait()
        return os.getpid()

    with start(program, workers=1, restarts=1, arguments={"way": way}) as running:
        started = psutil.Process(running.wait_report("worker 0").values["pid"])
        os.kill(running.pids["worker 0"], signal.SIGKILL)  # the task alone, as when memory runs out
        running.wait_exit("worker 0")
        assert not started.is_running() or started.status() == psutil.STATUS_ZOMBIE
        running.outcome()


def test_children_that_hide_end_with_the_run(root):
    def program(task):
        import subprocess

        hidden = subprocess.Popen(["setsid", "env", "-i", "/bin/sleep", "1000"], stdout=subprocess.DEVNULL)
        task.report(pid=hidden.pid)

    with start(program, workers=1) as running:
        hidden = running.wait_report("worker 0").values["pid"]
        running.outcome()
    assert not psutil.pid_exists(hidden) or sys.platform != "linux"


# Logs


def test_logs_of_any_shape():
    def program(task):
        import os

        os.write(1, b"x" * 3_000_000 + b"\n")
        os.write(1, b"caf\xc3\xa9 \xff\xfe\x00 \xe2\x80\xa8 carriage\rreturn\n")
        os.write(2, b"no newline")

    done = run(program, workers=1)
    lines = done.log["worker 0"].split("\n")
    assert len(lines) == 3 and {"no newline", "caf\u00e9 \ufffd\ufffd\0 \u2028 carriage\rreturn"} < set(lines)
    assert max(map(len, lines)) == 10_000


def test_a_flood_of_lines_is_neither_lost_nor_slow_to_search():
    def program(task):
        print("\n".join(f"line {number}" for number in range(30_000)), flush=True)
        task.report(step=1)

    with start(program, workers=1) as running:
        assert running.wait_line("worker 0", "line 29999")
        assert running.outcome().log["worker 0"].split("\n") == [f"line {number}" for number in range(30_000)]


def test_a_search_looks_at_each_item_once():
    items, looked = [1, 2], []
    find = run_state.first(items, lambda item: looked.append(item) or item == 4)
    assert find() is None and find() is None
    items += [3, 4, 5]
    assert find() == 4 and looked == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "value, wanted, answer",
    [
        (3, 3, True),
        (2.5, 3, False),
        (4, 3, True),
        ("a", "a", True),
        ("b", "a", False),
        (None, 3, False),
        ("x", 3, False),
    ],
)
def test_numbers_are_reached_and_words_are_met(value, wanted, answer):
    assert run_state.reaches(value, wanted) is answer


# Nothing left behind


@both_ways
def test_nothing_is_left_after_the_normal_end_and_after_an_exception(root, forks):
    def program(task):
        return task.index

    with start(program) as running:
        addresses = running.addresses.values()
        running.outcome()
        assert_nothing_left(root, addresses)
    with pytest.raises(ZeroDivisionError), start(waits) as running:
        addresses = running.addresses.values()
        raise ZeroDivisionError
    assert_nothing_left(root, addresses)


@both_ways
def test_nothing_is_left_after_an_interrupt_in_a_wait(root, forks):
    running = start(waits)
    running.wait_report("worker 0")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # an earlier test may have left another
    main_thread = threading.main_thread().ident
    threading.Timer(0.3, signal.pthread_kill, [main_thread, signal.SIGINT]).start()  # the thread that waits
    with pytest.raises(KeyboardInterrupt):
        running.wait_report("worker 0", step=1)
    signal.signal(signal.SIGINT, before)
    assert_nothing_left(root, running.addresses.values())


@both_ways
@pytest.mark.parametrize("moment", ["_prepare", "start_supervisor", "RunState"])
def test_nothing_is_left_after_an_interrupt_of_the_start(root, monkeypatch, moment, forks):
    right = getattr(local, moment)

    def interrupted(*arguments):
        answer = right(*arguments)
        raise KeyboardInterrupt(str(answer))

    monkeypatch.setattr(local, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(waits)
    gc.collect()
    gone, alive = psutil.wait_procs(ours(root), timeout=ENOUGH_SECONDS)
    assert not alive
    assert_nothing_left(root)


@both_ways
def test_nothing_is_left_when_the_last_reference_goes(root, forks):
    running = start(waits)
    addresses = dict(running.addresses).values()
    del running
    gc.collect()
    assert_nothing_left(root, addresses)


PARENT = """
import json, os, sys, threading
from course_lib import cluster

def waits(task):
    import threading
    task.report(ready=1)
    threading.Event().wait()

running = cluster.start(cluster.Job(waits, workers=2, resources=cluster.Resources(memory_gib=0.05)), show=None)
for task in running.pids:
    running.wait_report(task, ready=1)
print(json.dumps([dict(running.pids), dict(running.addresses)]), flush=True)
sys.stdin.readline()
"""


def parent(root: Path, then: str) -> tuple[subprocess.Popen, list[psutil.Process], list[str]]:
    """Another Python that starts a cluster and then does something; it, its cluster's processes and addresses."""
    script = root / "parent.py"
    script.write_text(PARENT + textwrap.dedent(then))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=environment
    )
    pids, addresses = json.loads(process.stdout.readline())
    cluster_processes = ours(root)
    assert {*pids.values()} < {found.pid for found in cluster_processes}
    process.stdin.write("go on\n")
    process.stdin.flush()
    return process, cluster_processes, list(addresses.values())


def await_end_and_nothing_left(root, process, cluster_processes, addresses):
    process.stdin.close()
    process.stdout.close()
    process.wait(ENOUGH_SECONDS)
    gone, alive = psutil.wait_procs(cluster_processes, timeout=ENOUGH_SECONDS)
    assert not alive
    assert_nothing_left(root, addresses)


@pytest.mark.parametrize(
    "then",
    ["", "sys.exit(1)", "raise RuntimeError", "kept = [running]; kept.append(kept)"],
    ids=["end", "exit", "error", "cycle"],
)
def test_nothing_is_left_when_python_ends_without_a_stop(root, then):
    await_end_and_nothing_left(root, *parent(root, f"sys.stderr.close()\n{then}"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_parent_is_killed(root, number):
    process, *rest = parent(root, "threading.Event().wait()")
    process.send_signal(number)
    await_end_and_nothing_left(root, process, *rest)


@needs_linux
def test_nothing_is_left_when_the_parent_is_killed_and_its_fork_holds_the_pipes_while_a_task_is_paused_and_others_talk(
    root,
):
    then = """
        if (child := os.fork()) == 0:
            threading.Event().wait()
        running.pause("worker 0")
        running.pause("worker 1")
        print(child, flush=True)
        threading.Event().wait()
    """
    process, *rest = parent(root, then)
    fork = psutil.Process(int(process.stdout.readline()))
    try:
        process.kill()
        await_end_and_nothing_left(root, process, *rest)
        assert fork.is_running()
    finally:
        fork.kill()


@needs_linux
def test_a_fork_that_reads_nothing_does_not_stop_the_clean_up_of_chatty_tasks(root):
    """The pipe of events is full when the parent dies, and nobody will ever read it."""
    then = """
        if (one := os.fork()) == 0:
            threading.Event().wait()

        def talks(task):
            while True:
                print("x" * 1000)

        second = cluster.start(cluster.Job(talks, workers=1, resources=cluster.Resources(memory_gib=0.05)), show=None)
        if (other := os.fork()) == 0:
            threading.Event().wait()
        second.wait_line("worker 0", "x")
        print(one, other, flush=True)
        threading.Event().wait()
    """
    process, *rest = parent(root, then)
    forks = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    try:
        process.send_signal(signal.SIGSTOP)  # no longer reads
        time.sleep(0.5)  # lets the pipe fill; a pipe that is not full makes the test easier, not wrong
        talking = ours(root)
        process.kill()
        psutil.wait_procs(talking, timeout=ENOUGH_SECONDS)
        await_end_and_nothing_left(root, process, *rest)
    finally:
        for fork in forks:
            fork.kill()


@needs_linux
def test_a_fork_of_the_parent_neither_hinders_a_stop_nor_makes_one(root):
    then = """
        if os.fork() == 0:
            sys.exit(0)  # its finalizers run
        os.wait()
        running.restart("worker 0")  # still here
        if (child := os.fork()) == 0:
            threading.Event().wait()  # holds the pipes
        running.stop()
        os.kill(child, 9)
    """
    await_end_and_nothing_left(root, *parent(root, then))


@both_ways
@needs_linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_supervisor_that_is_killed_takes_its_tasks_along_and_one_line_says_so(root, number, forks):
    def program(task):
        import subprocess
        import threading

        subprocess.Popen(["setsid", "sleep", "1000"])
        subprocess.Popen(["sleep", "1000"])
        task.report(ready=1)
        threading.Event().wait()

    with start(program) as running:
        for task in running.pids:
            running.wait_report(task, ready=1)
        running.pause("worker 1")
        addresses = running.addresses.values()
        deadline = time.monotonic() + ENOUGH_SECONDS
        while len(below := ours(root)) < 2 * 3:  # setsid may be just turning into sleep, and then it can't be read
            assert time.monotonic() < deadline
        psutil.Process(running.pids["worker 0"]).parent().send_signal(number)
        with pytest.raises(CourseError) as error:
            running.wait_report("worker 0", step=1)
        expected = {
            signal.SIGKILL: "the cluster's supervisor ended (it was killed), and its tasks with it; "
            "start the cluster again"
        }
        assert expected.get(number, "the cluster's supervisor ended") in one_line(
            error
        ) or "the cluster was stopped" in one_line(error)
        gone, alive = psutil.wait_procs(below, timeout=ENOUGH_SECONDS)
        assert not alive
        with pytest.raises(CourseError, match="worker 0 cannot kill: the cluster is no longer running"):
            running.kill("worker 0")
    assert_nothing_left(root, addresses)


@both_ways
def test_two_clusters_at_once_do_not_hold_each_other(root, forks):
    with start(waits) as first, start(waits) as second:
        first.stop()
        assert second.wait_report("worker 1")
        assert not set(first.addresses.values()) & set(second.addresses.values())


WAITS_IN_A_CELL = """
from course_lib import cluster

def waits(task):
    import threading
    print("waiting")
    threading.Event().wait()

with cluster.start(cluster.Job(waits, workers=2, resources=cluster.Resources(memory_gib=0.05))) as running:
    running.wait_report("worker 0", step=1)
"""


@pytest.fixture
def kernel(root):
    client = need("jupyter_client")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    manager, client = client.manager.start_new_kernel(env=environment)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def execute(client, code: str) -> str:
    return client.execute_interactive(code, timeout=ENOUGH_SECONDS, output_hook=lambda message: None)["content"][
        "status"
    ]


def test_nothing_is_left_after_a_kernel_restart(root, kernel):
    manager, client = kernel
    for now in (False, True):
        code = PARENT.replace("print(json", "open('%s', 'w').write(json" % (root / "pids")).replace(
            ", flush=True)", ")"
        )
        assert execute(client, code) == "ok"
        cluster_processes, addresses = ours(root), json.loads((root / "pids").read_text())[1].values()
        assert len(cluster_processes) == 3
        manager.restart_kernel(now=now)
        gone, alive = psutil.wait_procs(cluster_processes, timeout=ENOUGH_SECONDS)
        assert not alive
        assert_nothing_left(root, addresses)
        client.wait_for_ready(timeout=ENOUGH_SECONDS)


def test_nothing_is_left_after_a_kernel_interrupt_and_the_kernel_goes_on(root, kernel):
    manager, client = kernel
    began = []

    def interrupt_when_waiting(message):
        if message["msg_type"] == "stream" and "worker 0 | waiting" in message["content"]["text"] and not began:
            began.extend(ours(root))
            manager.interrupt_kernel()

    reply = client.execute_interactive(WAITS_IN_A_CELL, timeout=ENOUGH_SECONDS, output_hook=interrupt_when_waiting)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert len(began) == 3
    assert_nothing_left(root)  # before the cell has ended
    assert execute(client, "assert repr(running) == 'Cluster: nothing running'") == "ok"


# Ports


SERVES = """
import sys
from course_lib import cluster

def serves(task):
    import socket
    host, port = task.addresses[task.name].split(":")
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", int(port)))
        server.listen()
        task.report(ready=1)
        for name in task.addresses:  # until all have bound
            (task.folder / task.name).touch()
        while not all((task.folder / name).exists() for name in task.addresses):
            pass
    return int(port)

for _ in range(5):
    done = cluster.run(cluster.Job(serves, workers=2, resources=cluster.Resources(memory_gib=0.01)), show=None)
    print(len(set(done.results.values())))
"""


def test_twenty_clusters_from_four_processes_take_their_ports_without_races(root):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}

    def python(_):
        return subprocess.run([sys.executable, "-c", entry], cwd=root, env=environment, capture_output=True, text=True)

    (root / "serves.py").write_text(SERVES)
    entry = "import runpy; runpy.run_path('serves.py', run_name='__main__')"
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(python, range(4)))
    assert [(done.stdout.split(), done.stderr) for done in runs] == [(["2"] * 5, "")] * 4


def test_a_held_port_is_kept_from_others_and_open_to_its_task():
    held = processes.hold_port(0)
    number = held[0].getsockname()[1]
    with socket.socket() as task, pytest.raises(OSError):
        task.bind(("", number))
    with socket.socket() as task:
        task.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        task.bind(("", number))
        task.listen()
    for one in held:
        one.close()


# Random kills


@both_ways
def test_random_kills_recover_to_the_undisturbed_losses_or_say_why_not(root, forks):
    tally = chaos_cluster.storm(chaos_cluster.NUMPY, runs=8, seed=3, root=root)
    assert tally.recovered + tally.ended == 8 and tally.wrong == [] and tally.left == []
    assert tally.recovered >= 4


# With a framework


@needs_tensorflow
def test_two_tensorflow_workers_reduce_and_a_survivor_reports_what_it_saw():
    def program(task):
        import numpy as np
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()

        @tf.function
        def total():
            return strategy.run(
                lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant([1.0 + task.index, 2.0]))
            )

        task.report(total=strategy.experimental_local_results(total())[0].numpy()[0])
        np.testing.assert_array_equal(strategy.experimental_local_results(total())[0].numpy(), [3.0, 4.0])
        while True:
            total()

    described = cluster.Job(program, workers=2, resources=cluster.Resources(cpus=1, limit_seconds=180))
    with cluster.start(described, show=None) as running:
        for task in described.tasks:
            assert running.wait_report(task).values == {"total": 3.0}
        running.kill("worker 1")
        assert running.wait_exit("worker 1").asked
        survivor = running.wait_exit("worker 0")
        assert survivor.failed and survivor.error in outcome.CONSEQUENCES and survivor.message
        assert "total()" in survivor.traceback
        with pytest.raises(cluster.RunFailed, match=f"worker 0 failed: {survivor.error}"):
            running.outcome()


@pytest.mark.skipif(not chaos_cluster.has("jax"), reason="needs JAX")
def test_two_jax_workers_sum():
    def program(task):
        import jax
        import keras

        keras.distribution.initialize()
        total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jax.numpy.ones((1, 2)) * (1 + task.index))
        return jax.process_count(), total.addressable_shards[0].data.tolist()

    done = cluster.run(
        cluster.Job(program, workers=2, framework="jax", resources=cluster.Resources(limit_seconds=180)), show=None
    )
    assert done.results["worker 0"] == done.results["worker 1"] == (2, [[3.0, 3.0]])
