"""Tasks without a supervisor, as Slurm and Kubernetes start them: real processes here, each with its rank."""

import os
import random
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from course_lib import cluster
from course_lib.cluster.rendezvous import Rendezvous

HOST = "127.0.0.1"
PYTHONPATH = os.pathsep.join([str(Path(__file__).parent), str(Path(cluster.__file__).parents[2])])


def first_waits_for_ever(task):
    import threading

    if task.index == 0:
        threading.Event().wait()
    os._exit(0)  # as a program that a library ends


def returns_at_once_or_looks_at_the_other(task):
    if task.index == 0:
        (task.folder / "pid").write_text(str(os.getpid()))
        return "first"
    reports = task.folder.parent / "reports" / "attempt 0" / "worker 0.jsonl"
    while not reports.exists() or "returned" not in reports.read_text():
        time.sleep(0.05)
    os.kill(int((task.folder / "pid").read_text()), 0)  # raises when it has left
    return "second"


def evaluator_is_lost_once(task):
    marker = task.folder / "lost"
    if task.type == "evaluator" and not marker.exists():
        marker.touch()
        os._exit(1)
    return task.name


def reports_and_waits(task):
    import threading

    task.report(step=1)
    threading.Event().wait()


class Processes:
    """The tasks of a job, each a process that knows its rank alone; what still runs at the end is killed."""

    def __init__(self, job: cluster.Job, folder: Path):
        self.job, self.folder = job, folder
        self.ports = free_row(len(job.tasks) + 1)
        self.running: list[subprocess.Popen] = []
        (folder / "job.json").write_text(job.as_json())

    def start(self, rank: int) -> subprocess.Popen:
        place = {
            "JOB_COMPLETION_INDEX": str(rank),
            "COURSE_HOSTS": ",".join([HOST] * len(self.job.tasks)),
            "COURSE_FIRST_PORT": str(self.ports[0]),
            "PYTHONPATH": PYTHONPATH,
        }
        command = [sys.executable, "-m", "course_lib.cluster", str(self.folder)]
        self.running.append(subprocess.Popen(command, env={**os.environ, **place}, stderr=subprocess.PIPE, text=True))
        return self.running[-1]

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_) -> None:
        for process in self.running:
            process.kill()
            process.communicate()


def free_row(length: int) -> range:
    """Ports that follow each other and that nobody has, below those that the system gives away."""
    while True:
        first = random.randrange(20000, 32000)
        with ExitStack() as held:
            try:
                for port in range(first, first + length):
                    held.enter_context(socket.create_server((HOST, port)))
                return range(first, first + length)
            except OSError:
                continue


def end(process: subprocess.Popen) -> tuple[int, str]:
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def test_a_task_that_has_returned_stays_until_all_have(tmp_path):
    with Processes(cluster.Job(returns_at_once_or_looks_at_the_other), tmp_path) as tasks:
        first, second = tasks.start(0), tasks.start(1)
        assert (end(first), end(second)) == ((0, ""), (0, ""))


def test_a_lost_task_ends_the_others_though_they_wait_for_ever(tmp_path):
    with Processes(cluster.Job(first_waits_for_ever), tmp_path) as tasks:
        first, _ = tasks.start(0), tasks.start(1)
        assert end(first) == (1, "worker 1 was lost, so worker 0 ends as well\n")


def test_the_loss_of_the_first_task_ends_the_others(tmp_path):
    with Processes(cluster.Job(reports_and_waits), tmp_path) as tasks:
        with socket.create_server((HOST, tasks.ports[-1])) as first:
            second = tasks.start(1)
            connection, _ = first.accept()
            assert connection.recv(100) == b"worker 1\n"
            connection.close()
        assert end(second) == (1, "worker 0 was lost, so worker 1 ends as well\n")


def test_a_lost_evaluator_is_started_again_alone(tmp_path):
    with Processes(cluster.Job(evaluator_is_lost_once, workers=1, evaluator=True), tmp_path) as tasks:
        worker, evaluator = tasks.start(0), tasks.start(1)
        assert end(evaluator)[0] == 1
        assert end(tasks.start(1)) == end(worker) == (0, "")


def test_strangers_at_the_port_do_no_harm(tmp_path):
    with Processes(cluster.Job(evaluator_is_lost_once), tmp_path) as tasks:
        first = tasks.start(0)
        with knock(tasks.ports[-1]) as silent, knock(tasks.ports[-1]) as loud:
            loud.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\xff" * 1000)
            assert (end(tasks.start(1)), end(first)) == ((0, ""), (0, ""))
            assert silent.fileno() > 0


@pytest.mark.parametrize("which", [0, -1], ids=["the task's own", "the rendezvous'"])
def test_a_taken_port_is_one_line(tmp_path, which):
    with Processes(cluster.Job(evaluator_is_lost_once), tmp_path) as tasks:
        with socket.create_server(("", tasks.ports[which])):
            code, said = end(tasks.start(0))
    assert code == 2 and said.count("\n") == 1
    assert f"port {tasks.ports[which]}" in said and "set COURSE_FIRST_PORT" in said


def test_a_folder_that_this_machine_does_not_see_is_one_line(tmp_path):
    with Processes(cluster.Job(evaluator_is_lost_once), tmp_path) as tasks:
        (tmp_path / "job.json").unlink()
        code, said = end(tasks.start(0))
    assert code == 2 and said.count("\n") == 1 and "every machine must see this folder" in said


def test_servers_get_the_word_to_leave_from_the_chief_wherever_an_operator_lists_it():
    job, row = cluster.Job(reports_and_waits, workers=1, parameter_servers=1), free_row(4)
    addresses = {name: f"{HOST}:{port}" for name, port in zip(["ps 0", "worker 0", "chief 0"], row)}
    addresses["chief 0"] = f"{HOST}:{row[0]}"  # the rendezvous' port follows the chief's
    rendezvous = Rendezvous("chief 0", addresses, job)
    with knock(row[-1]) as server, knock(row[-1]) as worker:
        server.sendall(b"ps 0\n")
        worker.sendall(b"worker 0\n")
        rendezvous.leave()
        assert server.recv(10) == worker.recv(10) == b"go\n"


def knock(port: int) -> socket.socket:
    """Connect as soon as somebody listens."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((HOST, port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, f"nobody listens at port {port}"
            time.sleep(0.02)
