"""Tasks in network namespaces: what the links are, what travels on them, and that nothing of them stays."""

import inspect
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from conftest import HAS_TENSORFLOW
from network_links import needs_links

from course_lib import cluster
from course_lib.cluster import communication, limited_links
from course_lib.cluster.worker_program import WorkerProgram
from course_lib.errors import CourseError

LINK = cluster.Link(100)
BUFFER_BYTES = 3 * 400_000


def job(program, **arguments) -> cluster.Job:
    """The program goes as text: as a reference to this module it would bring TensorFlow in with it."""
    text = WorkerProgram(program.__name__, text=inspect.getsource(program))
    return cluster.Job(
        text, arguments=arguments, link=LINK, resources=cluster.Resources(memory_gib=0.05, limit_seconds=60)
    )


def stay(task):
    import signal

    task.report(ready=1)
    signal.pause()


def greet(task, greeting):
    """Worker 0 greets whoever comes; worker 1 asks at worker 0's address."""
    import socket

    host, port = task.addresses["worker 0"].split(":")
    if task.index == 0:
        with socket.create_server((host, int(port))) as server:
            task.report(serving=1)
            caller, _ = server.accept()
            with caller:
                caller.sendall(greeting.encode())
        return greeting
    while True:
        try:
            with socket.create_connection((host, int(port))) as caller:
                return caller.recv(100).decode()
        except ConnectionRefusedError:  # worker 0 does not listen yet
            continue


def namespaces_of(pid: int) -> set[str]:
    """The network namespaces that a process is in, or holds as open files: "net:[4026532288]"."""
    folder = Path("/proc", str(pid))
    try:
        return {
            name
            for path in [folder / "ns/net", *(folder / "fd").iterdir()]
            if (name := target(path)).startswith("net:[")
        }
    except (FileNotFoundError, ProcessLookupError):
        return set()


def target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # it closed meanwhile
        return ""


def assert_gone(namespaces: set[str]) -> None:
    """No process, open file or mount keeps any of them, so that the kernel has let go of all that was in them."""
    held = set().union(*map(namespaces_of, psutil.pids()))
    assert not held & namespaces
    mounts = Path("/proc/self/mountinfo").read_text()
    assert not [name for name in namespaces if name in mounts]


@pytest.fixture
def unchanged():
    """This process's namespace and interfaces, and the named namespaces, are afterwards as before."""

    def seen():
        named = Path("/run/netns")
        return namespaces_of(os.getpid()), set(psutil.net_if_addrs()), set(named.iterdir()) if named.exists() else set()

    before = seen()
    yield
    assert seen() == before


def lab_of(pids) -> tuple[set[str], list[psutil.Process]]:
    """All namespaces of a running cluster but our own, and its processes."""
    tasks = [psutil.Process(pid) for pid in pids]
    processes = [tasks[0].parent(), *tasks]
    namespaces = set().union(*(namespaces_of(process.pid) for process in processes)) - namespaces_of(os.getpid())
    assert len(namespaces) == 1 + len(tasks)  # the switch has its own
    return namespaces, processes


def test_a_token_bucket_is_small_against_a_transfer_and_large_against_a_frame():
    def burst(megabits):
        words = limited_links.token_bucket(cluster.Link(megabits))
        return int(words[words.index("burst") + 1].removesuffix("b"))

    assert limited_links.token_bucket(LINK)[:3] == ["tbf", "rate", "100000000bit"]
    assert burst(1) == 10 * 1514
    assert burst(400) == 400e6 / 8 * 0.002


def test_each_task_has_an_address_of_its_own():
    hosts = limited_links.NetworkLab(3, LINK).hosts
    assert hosts == ("10.77.0.1", "10.77.0.2", "10.77.0.3")


def test_the_prediction_is_bytes_over_bandwidth():
    assert communication.ring_bytes(4, 100) == 150
    # 1.448 MB each way in frames of 1514 for 1448 bytes: 12.112 megabit
    assert communication.ring_seconds(2, 1_448_000, 12.112) == pytest.approx(1, rel=1e-12)
    timing = communication.LinkTiming(2, 12.112, 1_448_000, 0, compute_seconds=0.5, measured_seconds=2.0)
    assert timing.predicted_seconds == pytest.approx(1.5) and timing.ratio == pytest.approx(0.75)


@pytest.mark.parametrize("megabits", [0, -5, 0.01, 1e6, float("nan")])
def test_a_rate_that_cannot_be_is_refused(megabits):
    with pytest.raises(CourseError, match="between 0.1 and 10000 megabits"):
        limited_links.require(cluster.Link(megabits))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sys.platform": "darwin"}, "need root on Linux.* on darwin"),
        ({"sys.platform": "linux", "os.geteuid": lambda: 1000}, "need root on Linux.* user 1000"),
        (
            {"sys.platform": "linux", "os.geteuid": lambda: 0, "shutil.which": lambda name: None},
            "ip, tc, nsenter, unshare: install",
        ),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(monkeypatch, changes, said):
    monkeypatch.setattr(subprocess, "Popen", None)
    for name, value in changes.items():
        monkeypatch.setattr(f"course_lib.cluster.limited_links.{name}", value)
    with pytest.raises(CourseError, match=said) as caught:
        cluster.start(job(stay))
    assert "\n" not in str(caught.value)


def test_a_system_that_forbids_it_is_quoted(monkeypatch):
    def forbid(command):
        raise OSError("unshare failed: Operation not permitted")

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(limited_links, "_run", forbid)
    with pytest.raises(CourseError, match="does not allow .*Operation not permitted.*leave link out"):
        limited_links.require(LINK)


@needs_links
def test_a_task_sees_its_own_interfaces_alone(unchanged):
    lab = limited_links.NetworkLab(2, LINK)
    lab.open()
    try:
        seen = subprocess.check_output([*lab.command_prefix(1), "ip", "-brief", "address"], text=True)
    finally:
        lab.close()
        lab.close()  # once more is no harm
    assert [line.split()[0].split("@")[0] for line in seen.splitlines()] == ["lo", "eth0"]
    assert "10.77.0.2/24" in seen


@needs_links
def test_a_lab_that_opens_half_leaves_nothing(unchanged, monkeypatch):
    monkeypatch.setattr(limited_links, "token_bucket", lambda link: ["no-such-filter"])
    lab = limited_links.NetworkLab(2, LINK)
    with pytest.raises(OSError, match="tc qdisc .* no-such-filter. said: .*unknown"):
        lab.open()


@needs_links
def test_two_laboratories_do_not_meet(unchanged):
    jobs = [job(greet, greeting=word) for word in ("one", "two")]
    with cluster.start(jobs[0], show=None) as one, cluster.start(jobs[1], show=None) as two:
        assert one.addresses == two.addresses
        assert set(one.outcome().results.values()) == {"one"}
        assert set(two.outcome().results.values()) == {"two"}


@needs_links
@pytest.mark.parametrize("end", ["normal", "exception", "killed supervisor"])
def test_nothing_stays_after(end, unchanged):
    try:
        with cluster.start(job(stay), show=None) as running:
            for task in running.job.tasks:
                running.wait_report(task, ready=1)
            namespaces, processes = lab_of(running.pids.values())
            if end == "exception":
                raise ZeroDivisionError
            if end == "killed supervisor":
                processes[0].kill()
    except ZeroDivisionError:
        pass
    assert not psutil.wait_procs(processes, timeout=60)[1]
    assert_gone(namespaces)


@needs_links
def test_nothing_stays_after_the_parent_was_killed(unchanged, tmp_path):
    program = tmp_path / "stay.py"
    program.write_text(inspect.getsource(stay))
    parent = textwrap.dedent(f"""
        from course_lib import cluster
        resources = cluster.Resources(memory_gib=0.05, limit_seconds=60)
        running = cluster.start(cluster.Job("{program}:stay", link=cluster.Link(100), resources=resources), show=None)
        for task in running.job.tasks:
            running.wait_report(task, ready=1)
        print(*running.pids.values(), flush=True)
        input()
    """)
    place = {"cwd": Path(__file__).parents[1], "env": {**os.environ, "TMPDIR": str(tmp_path)}}
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **place
    ) as starter:
        namespaces, processes = lab_of(map(int, starter.stdout.readline().split()))
        starter.send_signal(signal.SIGKILL)
    assert not psutil.wait_procs(processes, timeout=60)[1]
    assert_gone(namespaces)
    assert list(tmp_path.iterdir()) == [program]


@needs_links
@pytest.mark.skipif(not HAS_TENSORFLOW, reason="needs TensorFlow")
def test_a_ring_sends_two_times_n_minus_1_over_n_of_the_buffer(unchanged):
    """Three workers, because with two a naive exchange would send as much."""
    seconds = communication.ring_seconds(3, BUFFER_BYTES, LINK.megabits)
    (timing,) = communication.measure_all_reduce([LINK.megabits], workers=3, seconds=seconds, repeats=3)
    assert timing.buffer_bytes == pytest.approx(BUFFER_BYTES, abs=12)
    frames_bytes = communication.ring_bytes(3, timing.buffer_bytes) / limited_links.PAYLOAD_SHARE
    # Above that: an acknowledgement of 66 bytes for ten frames of 1,514, on a busy machine for each; a hundredth for
    # gRPC's own messages and a repeated frame. Sending all to all would take half as much again.
    assert frames_bytes < timing.sent_bytes < 1.01 * (1 + 66 / 1514) * frames_bytes
