"""Tasks that are forks: to a program and to the system the same as a new Python, and ended as surely."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest
from installed import need
from test_cluster import ENOUGH_SECONDS, assert_nothing_left, one_line, root, waits  # noqa: F401 (root is a fixture)

from course_lib import cluster
from course_lib.cluster import fork, start_supervisor
from course_lib.errors import CourseError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="forks of frameworks are made on Linux alone"),
    pytest.mark.usefixtures("root"),
]
RESOURCES = cluster.Resources(memory_gib=0.05, limit_seconds=2 * ENOUGH_SECONDS)


def run(program, **fields) -> cluster.Outcome:
    return cluster.run(cluster.Job(program, resources=fields.pop("resources", RESOURCES), **fields), show=None)


@pytest.fixture
def forks(monkeypatch):
    """Forks for programs that need no framework, of a server that imports none."""
    monkeypatch.setattr(start_supervisor, "can_fork", lambda job: True)
    monkeypatch.setattr(start_supervisor, "modules", lambda job: ())


def test_a_fork_shows_what_a_new_python_shows(forks, monkeypatch, tmp_path):
    def tell(task):
        """What a program can see of its process."""
        import asyncio
        import gc
        import os
        import random
        import signal
        import sys
        import tempfile
        import threading

        unlike = ("COURSE_CHANNEL", "OPENBLAS_NUM_THREADS", "PYTEST_CURRENT_TEST")
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
        status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines())
        shown = dict(part.split("=", 1) for part in open("/proc/self/environ").read().split("\0") if "=" in part)
        random.random()
        return {
            "environment": {name: value for name, value in os.environ.items() if name not in unlike},
            "marks": {name: shown[name] for name in ("COURSE_FOLDER", "COURSE_TASK")},
            "handlers": [str(signal.getsignal(number)) for number in numbers],
            "signals": [status[name] for name in ("SigBlk", "SigIgn")],
            "cores": sorted(os.sched_getaffinity(0)),
            "directory": os.getcwd(),
            "temporary": tempfile.gettempdir(),
            "group": os.getpgid(0) == os.getpid(),
            "files": {number: os.readlink(f"/proc/self/fd/{number}").split(":")[0] for number in range(3)},
            "more files": len(os.listdir("/proc/self/fd")),
            "path": [entry for entry in sys.path if entry],
            "threads": threading.active_count(),
            "loops": asyncio._get_running_loop(),
            "collects": gc.isenabled(),
            "unbuffered": sys.stdout.write_through,
        }

    monkeypatch.setenv("HELLO", "there")
    monkeypatch.chdir(tmp_path)
    resources = cluster.Resources(memory_gib=0.05, cpus=1, limit_seconds=ENOUGH_SECONDS)
    shown_by = {}
    for way in (False, True):
        monkeypatch.setattr(start_supervisor, "can_fork", lambda job, way=way: way)
        folder = tmp_path / "kept"
        shown_by[way] = cluster.run(
            cluster.Job(tell, resources=resources), folder=folder, ports=(24231, 24232), show=None
        ).results
    assert json.dumps(shown_by[True], indent=1, sort_keys=True) == json.dumps(
        shown_by[False], indent=1, sort_keys=True
    )  # shown by line
    assert shown_by[True]["worker 1"]["marks"] == {"COURSE_FOLDER": str(tmp_path / "kept"), "COURSE_TASK": "worker 1"}


def test_two_forks_draw_different_numbers(forks, monkeypatch):
    monkeypatch.setattr(start_supervisor, "modules", lambda job: ("numpy.random",))

    def draws(task):
        import random
        import tempfile

        import numpy as np

        return random.random(), np.random.random(), tempfile.mktemp()

    first, second = run(draws).results.values()
    assert all(one != other for one, other in zip(first, second))


def test_frameworks_are_imported_already_and_have_started_nothing():
    def counts(task):
        import sys

        before = {"tensorflow", "keras"} & sys.modules.keys()
        import keras
        import tensorflow as tf

        threads = open("/proc/self/status").read().split("Threads:")[1].split()[0]
        return sorted(before), keras.backend.backend(), threads, len(tf.config.list_logical_devices("CPU"))

    need("tensorflow")
    # One thread waits for the supervisor's word.
    assert run(counts).result == (["keras", "tensorflow"], "tensorflow", "2", 1)


@pytest.mark.parametrize(
    "fields, answer",
    [
        ({}, False),
        ({"parameter_servers": 1}, True),
        ({"program": "json:dumps"}, True),
        ({"program": "json:dumps", "resources": cluster.Resources(gpus=1)}, False),
        ({"program": "json:dumps", "link": cluster.Link(100)}, False),
        ({"program": "json:dumps", "environment": {"PYTHONHASHSEED": "random"}}, False),
    ],
)
def test_what_is_forked(fields, answer):
    assert start_supervisor.can_fork(cluster.Job(**{"program": waits, **fields})) is answer


@pytest.mark.parametrize(
    "line", ["import keras", "import os, tensorflow.keras as k", "from jax import numpy", "from course_lib import data"]
)
def test_a_program_that_imports_a_framework_is_forked(line, tmp_path):
    (tmp_path / "train.py").write_text(f"def main(task):\n    {line}\n")
    assert start_supervisor.can_fork(cluster.Job(f"{tmp_path}/train.py:main"))


def server() -> psutil.Process:
    (found,) = [child for child in psutil.Process().children() if "course_lib.cluster.forkserver" in child.cmdline()]
    return found


def test_one_server_serves_until_the_environment_changes_or_it_dies(forks, monkeypatch):
    def hello(task):
        import os

        return os.environ.get("HELLO")

    assert run(hello).result is None
    first = server()
    assert run(hello).result is None and server() == first
    monkeypatch.setenv("HELLO", "there")
    assert run(hello).result == "there"
    second = server()
    assert second != first and not first.is_running()
    second.kill()
    second.wait()
    assert run(hello).result == "there" and server() != second


def test_a_run_goes_on_without_the_server_that_began_it(forks):
    def program(task):
        import threading

        task.report(attempt=task.attempt)
        if task.attempt == 0:
            threading.Event().wait()
        return task.attempt

    with cluster.start(cluster.Job(program, resources=RESOURCES, restarts=1), show=None) as running:
        running.wait_report("worker 0", attempt=0)
        start_supervisor.stop_server()
        running.kill("worker 1")
        assert running.outcome().results == {"worker 0": 1, "worker 1": 1}


def test_a_server_that_dies_while_it_is_asked_is_one_line_and_the_next_start_has_another(forks, monkeypatch, tmp_path):
    start_supervisor.stop_server()
    nowhere = {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"}  # no Python starts so
    monkeypatch.setattr(start_supervisor, "ENVIRONMENT_SPACE", nowhere)
    with pytest.raises(CourseError) as error:
        cluster.start(cluster.Job(waits, resources=RESOURCES))
    assert "the process that forks a cluster's tasks has ended" in one_line(error)
    assert_nothing_left(tmp_path)
    monkeypatch.setattr(start_supervisor, "ENVIRONMENT_SPACE", fork.ENVIRONMENT_SPACE)
    cluster.start(cluster.Job(waits, resources=RESOURCES), show=None).stop()


def test_an_interrupt_while_the_server_imports_leaves_nothing(forks, monkeypatch, tmp_path):
    start_supervisor.stop_server()
    monkeypatch.setattr(start_supervisor, "modules", lambda job: ("tensorflow",))  # takes longer than what follows
    right = start_supervisor.ForkServer.supervise

    def interrupted(self, *arguments):
        threading.Timer(0.3, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        return right(self, *arguments)

    monkeypatch.setattr(start_supervisor.ForkServer, "supervise", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        cluster.start(cluster.Job(waits, resources=RESOURCES))
    signal.signal(signal.SIGINT, before)
    assert not [child for child in psutil.Process().children() if "course_lib.cluster.forkserver" in child.cmdline()]
    assert_nothing_left(tmp_path)


def test_a_loss_ends_the_lost_tasks_own_forks_and_no_others(forks):
    def program(task):
        import os
        import threading

        if task.attempt == 0:
            if (child := os.fork()) == 0:
                os.setsid()
                threading.Event().wait()
            task.report(child=child)
            threading.Event().wait()

    with cluster.start(cluster.Job(program, resources=RESOURCES), show=None) as running:
        children = [psutil.Process(int(running.wait_report(task).values["child"])) for task in running.pids]
        running.kill("worker 0")
        running.wait_exit("worker 0")
        assert not children[0].is_running() or children[0].status() == psutil.STATUS_ZOMBIE
        assert psutil.Process(running.pids["worker 1"]).is_running() and children[1].is_running()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_parent_of_forks_is_killed(tmp_path, number):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
        import json, os, psutil, threading
        from course_lib import cluster
        from course_lib.cluster import start_supervisor

        start_supervisor.can_fork, start_supervisor.modules = lambda job: True, lambda job: ()

        def waits(task):
            import threading
            task.report(ready=1)
            threading.Event().wait()

        running = cluster.start(cluster.Job(waits, resources=cluster.Resources(memory_gib=0.05)), show=None)
        for task in running.pids:
            running.wait_report(task)
        if (child := os.fork()) == 0:  # holds the pipes, and the server's socket
            threading.Event().wait()
        running.pause("worker 1")
        print(json.dumps([child, [process.pid for process in psutil.Process().children(recursive=True)]]), flush=True)
        threading.Event().wait()
    """)
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment) as process:
        child, pids = json.loads(process.stdout.readline())
        started = [psutil.Process(pid) for pid in pids if pid != child]
        assert len(started) == 1 + 1 + 2  # server, supervisor, workers
        try:
            process.send_signal(number)
            process.wait(ENOUGH_SECONDS)
            assert not psutil.wait_procs(started, timeout=ENOUGH_SECONDS)[1]
        finally:
            psutil.Process(child).kill()
    assert_nothing_left(tmp_path)


def test_a_fork_of_the_parent_has_a_server_of_its_own(forks):
    def answers(task):
        return task.index

    run(answers)
    ours = server()
    if (child := os.fork()) == 0:
        code = 1
        try:
            code = 0 if list(run(answers).results.values()) == [0, 1] and server() != ours else 1
            start_supervisor.stop_server()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert run(answers).result == 0 and server() == ours
