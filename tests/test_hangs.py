"""Hang reports: what a process notes, what is seen of it while it stands still, and which task and cause are named.

`tests/incidents.py --runs 50` draws whole incidents by a seed; here are the parts, and one incident of each kind.
"""

import dataclasses
import faulthandler
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from conftest import HAS_TENSORFLOW
from incidents import CAUSE, Incident, job_of
from network_links import needs_links

from course_lib import cluster, hangs
from course_lib.cli import main
from course_lib.errors import CourseError
from course_lib.hangs import evidence, recorder, stillness
from course_lib.hangs.evidence import Evidence, Frame
from course_lib.hangs.recorder import CollectiveCall

needs_tensorflow = pytest.mark.skipif(not HAS_TENSORFLOW, reason="a stack without TensorFlow")
PROGRAM = Frame("train.py", 7, "train")
CALL = Frame("/x/site-packages/tensorflow/python/eager/context.py", 1688, "call_function")
JOIN = Frame("/x/site-packages/tensorflow/python/eager/context.py", 745, "ensure_initialized")


def test_a_record_holds_the_last_calls_and_what_is_open(tmp_path):
    path = recorder.path_of(tmp_path, "worker 0")
    assert recorder.read(path) is None and recorder.notes(path) == 0
    writer = recorder.Recorder(path)
    for number in range(1, 101):
        assert writer.enter(b"step: CollectiveReduceV2 float32[%d]" % number, True) == number
        if number < 100:
            writer.leave(number)
    writer.step(17)
    read = recorder.read(path)
    assert (read.step, read.now) == (17, "step: CollectiveReduceV2 float32[100]")
    assert [one.number for one in read.collectives] == list(range(37, 101))
    assert [one.left for one in read.collectives] == [True] * 63 + [False]
    before = read.notes
    writer.leave(writer.enter(b"evaluate", False))  # a call without collectives is progress, and no entry
    after = recorder.read(path)
    assert after.notes > before and after.now == "" and len(after.collectives) == 64


def test_long_texts_that_differ_only_at_their_end_stay_different():
    ends = [recorder.encoded("step", ["CollectiveReduceV2 float32[1]"] * 40 + [end]) for end in "ab"]
    assert ends[0] != ends[1] and max(map(len, ends)) <= recorder.TEXT_BYTES


@pytest.mark.parametrize(
    ("name", "call"), [("__inference_train_step_123", "train_step"), ("__forward_f_2_77", "f_2"), ("step", "step")]
)
def test_a_calls_name_has_no_counter_of_one_process(name, call):
    assert recorder.call_name(name) == call


def test_a_record_outlives_its_process(tmp_path):
    program = """
        import os, signal, sys
        from pathlib import Path
        from course_lib.hangs import recorder
        writer = recorder.Recorder(recorder.path_of(Path(sys.argv[1]), "worker 1"))
        writer.enter(b"train_step: CollectiveReduceV2 float32[8]", True)
        writer.step(3)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)])
    assert done.returncode == -signal.SIGKILL
    look = evidence.gather(tmp_path, "worker 1", None)
    assert (look.state, look.step, look.waiting.text) == ("ended", 3, "train_step: CollectiveReduceV2 float32[8]")


def test_each_module_that_is_loaded_is_progress(tmp_path):
    program = """
        import sys
        from pathlib import Path
        from course_lib.hangs import recorder
        recorder.record(Path(sys.argv[1]), "worker 0")
        notes = [recorder.notes(recorder.path_of(Path(sys.argv[1]), "worker 0"))]
        for _ in range(2):
            import wave
            notes.append(recorder.notes(recorder.path_of(Path(sys.argv[1]), "worker 0")))
        first, loaded, again = notes
        assert first == 1 and loaded > first and again == loaded, notes
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=True)


def test_stacks_are_faulthandlers_own(tmp_path):
    inside, leave = threading.Event(), threading.Event()

    def stand_still():
        inside.set()
        leave.wait()

    other = threading.Thread(target=stand_still)
    other.start()
    inside.wait()
    with open(tmp_path / "stacks", "wb") as file:
        faulthandler.dump_traceback(file)
    leave.set()
    other.join()
    threads = evidence.parse_stacks((tmp_path / "stacks").read_text())
    functions = [[frame.function for frame in thread] for thread in threads]
    assert "test_stacks_are_faulthandlers_own" in functions[0]
    assert any("stand_still" in names for names in functions[1:])
    assert any(frame.line == stand_still.__code__.co_firstlineno + 2 for thread in threads for frame in thread)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_gathered_is_what_the_system_says(tmp_path):
    program = """
        import socket, sys, time
        from pathlib import Path
        from course_lib.hangs import own_program
        own_program.keep_record(Path(sys.argv[1]), "worker 0")
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        client.sendall(bytes(1000))
        print(server.getsockname()[1], flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline())
        look = evidence.gather(tmp_path, "worker 0", process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        stopped = evidence.gather(tmp_path, "worker 0", process.pid)
        process.kill()
    assert look.state == "running" and stopped.state == "stopped" and stopped.threads == ()
    assert [frame.function for frame in look.stack] == ["<module>"]
    assert look.main_wait.endswith("nanosleep")  # the kernel's name for time.sleep
    assert ("listens", f"127.0.0.1:{port}", 0, 0) in look.links and look.sent_bytes >= 1000
    assert look.memory_bytes > 5e6 and look.cpu_seconds > 0
    assert Evidence.from_json(look.as_json()) == look


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_without_the_handler_is_not_ended_by_the_question(tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "worker 0.stacks").write_text("of an earlier attempt")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        look = evidence.gather(tmp_path, "worker 0", process.pid)
        process.stdin.close()
        assert process.wait() == 1  # EOFError, and no signal
    assert look.state == "running" and look.threads == ()


def test_stillness_waits_longer_for_a_task_that_computes(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(stillness.time, "monotonic", lambda: now[0])

    def found(cores: float) -> float:
        still, now[0] = stillness.Stillness(10), 0.0
        while not still.hangs("the same", {"worker 0": cores * now[0], "worker 1": 0.0}):
            now[0] += 1
        return now[0]

    assert found(cores=0.01) == 10 and found(cores=0.9) == 30
    still, now[0] = stillness.Stillness(10), 0.0
    for now[0] in range(100):  # something changes every nine seconds
        assert not still.hangs(now[0] // 9, {})


def task(name="worker 0", calls=("step: A",) * 3, inside=True, stack=(CALL, PROGRAM), **known) -> Evidence:
    """A task in its last call, or behind it."""
    entered = tuple(CollectiveCall(n, text, n < len(calls) or not inside) for n, text in enumerate(calls, 1))
    return Evidence(name, collectives=entered, threads=(tuple(stack),), **known)


RETURNED = {"state": "returned", "inside": False, "stack": ()}
READS = (
    Frame("/lib/python3.11/threading.py", 9, "wait"),
    PROGRAM,
    Frame("/x/site-packages/script_ops.py", 2, "__call__"),
)


@pytest.mark.parametrize(
    ("cause", "name", "others"),
    [
        ("stopped", "worker 1", [task("worker 1", inside=False, state="stopped")]),
        ("lost", "worker 1", [task("worker 1", inside=False, state="ended", stack=())]),
        ("data ended", "worker 1", [task("worker 1", calls=("step: A",) * 2, **RETURNED)]),
        ("other order", "worker 1", [task("worker 1", calls=("step: A", "step: A", "step: B"))]),
        ("entered alone", "worker 1", [task("worker 1", calls=("step: A", "step: A", "save: B"))]),
        ("own code", "worker 1", [task("worker 1", inside=False, stack=(PROGRAM,), main_wait="hrtimer_nanosleep")]),
        ("lock", "worker 1", [task("worker 1", inside=False, stack=(PROGRAM,), main_wait="futex_do_wait")]),
        (
            "input",
            "worker 1",
            [task("worker 1", inside=False, stack=(Frame("/x/site-packages/iterator_ops.py", 3, "next"), PROGRAM))],
        ),
        ("input", "worker 1", [dataclasses.replace(task("worker 1"), threads=((CALL, PROGRAM), READS))]),
        ("input", "worker 1", [task("worker 1", waits={"pipe_read": 1})]),
        (
            "unreachable",
            "worker 2",
            [
                task(
                    "worker 1",
                    links=(("established", "10.0.0.3:9", 500, 4),),
                    cluster="worker 1 of worker: 10.0.0.1:9 10.0.0.2:9 10.0.0.3:9",
                ),
                task("worker 2", links=(("established", "10.0.0.1:7", 500, 4), ("no answer yet", "10.0.0.2:9", 0, 2))),
            ],
        ),
        ("unknown", "", [task("worker 1")]),
    ],
)
def test_each_cause_by_what_shows_it(cause, name, others):
    first = task()
    found = hangs.diagnose([first, *others])
    assert (found.cause, found.task) == (cause, name), found
    assert found.remedy in str(found)


LISTS = "worker: a:1 b:2 c:3", "worker: b:2 a:1 c:3"


def joining(name: str, says: str, listed: str = LISTS[0]) -> Evidence:
    return Evidence(name, threads=((JOIN, PROGRAM),), cluster=f"{says} of {listed}")


@pytest.mark.parametrize(
    ("cause", "name", "tasks"),
    [
        ("not started", "worker 1", [Evidence("worker 1", threads=((PROGRAM,),))]),
        ("other cluster", "worker 2", [joining("worker 1", "worker 1"), joining("worker 2", "worker 2", LISTS[1])]),
        ("other cluster", "worker 1", [joining("worker 1", "worker 0", LISTS[1])]),
        ("other cluster", "worker 1", [joining("worker 1", "worker 0")]),
        ("not started", "worker 1", [Evidence("worker 1", state="returned")]),
        (
            "unreachable",
            "worker 1",
            [dataclasses.replace(joining("worker 1", "worker 1"), links=(("no answer yet", "10.0.0.1:1", 0, 3),))],
        ),
    ],
)
def test_who_keeps_a_cluster_from_forming(cause, name, tasks):
    found = hangs.diagnose([joining("worker 0", "worker 0"), *tasks])
    assert (found.cause, found.task) == (cause, name), found


def test_of_two_tasks_the_one_that_departs_from_what_it_did_is_named():
    usual = ("step: A", "sums: B") * 2
    first, second = task(calls=(*usual, "step: A")), task("worker 1", calls=(*usual, "sums: C"))
    assert hangs.diagnose([first, second]).task == "worker 1"
    assert (
        hangs.diagnose([dataclasses.replace(second, task="worker 0"), dataclasses.replace(first, task="worker 1")]).task
        == "worker 0"
    )


def test_a_report_shows_its_tasks_as_text_in_a_notebook_and_as_a_page(tmp_path):
    ahead = task(calls=("step: A", "<b> & step"), memory_bytes=2**20, busy=0.25, step=4, waits={"futex_do_wait": 9})
    found = hangs.HangReport((ahead, task("worker 1", calls=("step: A",), **RETURNED)), 60)
    page = found.write(str(tmp_path / "hang-report")).read_text()
    text = (tmp_path / "hang-report.txt").read_text()
    about = "No task made progress for 60 s. Look at worker 0 (entered alone): worker 0 is in a call"
    for shown in (text, page, found._repr_html_()):
        assert about in shown
    assert "train.py:7 in train" in text and "9 in futex_do_wait" in text and "<b> & step  (is in it)" in text
    assert "&lt;b&gt; &amp; step" in page and "<b> & step" not in page and "http:" not in page and "https:" not in page
    assert hangs.HangReport.from_json(found.as_json()) == found


def reported(incident: Incident) -> hangs.HangCause:
    with pytest.raises(cluster.RunFailed) as failed:
        cluster.run(job_of(incident), show=None)
    (found,) = failed.value.hangs
    assert found.diagnosis.seen in str(failed.value)
    return found.diagnosis


QUICK = "fewer batches", "call alone"  # one that hangs, and one that fails; the others run in CI
KINDS = [kind for kind in CAUSE if kind != "unplugged" and "JAX" not in kind]


@needs_tensorflow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS]
)
def test_an_incident_of_each_kind(kind):
    found = reported(Incident(kind, CAUSE[kind], 2, "worker 1", 3))
    assert (found.cause, found.task) == (CAUSE[kind], "worker 1"), found


@pytest.mark.slow
@needs_tensorflow
@needs_links
def test_a_worker_that_is_unplugged():
    found = reported(Incident("unplugged", "unreachable", 3, "worker 2", 2))
    assert (found.cause, found.task) == ("unreachable", "worker 2"), found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lock on JAX", "fewer batches on JAX"])
def test_an_incident_in_jax_processes(kind):
    found = reported(Incident(kind, CAUSE[kind], 2, "worker 1", 3))
    assert (found.cause, found.task) == (CAUSE[kind], "worker 1"), found


def waits_once(task):
    import threading

    if task.attempt == 0 and task.index == 1:
        threading.Event().wait()
    return task.attempt


def test_with_restarts_left_a_hang_is_a_failure_to_recover_from():
    resources = cluster.Resources(memory_gib=0.05, limit_seconds=60)
    outcome = cluster.run(cluster.Job(waits_once, hang_seconds=2, restarts=1, resources=resources), show=None)
    assert outcome.results == {"worker 0": 1, "worker 1": 1} and outcome.restarts == 1
    (found,) = outcome.hangs
    assert found.diagnosis.cause == "lock" and found.diagnosis.task == "worker 1" and found.seconds == 2


@pytest.mark.slow
@needs_tensorflow
def test_a_slow_step_is_no_hang():
    outcome = cluster.run(job_of(Incident("slow", "", 2, "worker 1", 3)), show=None)
    assert outcome.hangs == () and len(outcome.results) == 2


def test_hang_seconds_that_cannot_be():
    with pytest.raises(CourseError, match="hang_seconds must be more than 0"):
        cluster.Job(waits_once, hang_seconds=0)


def test_the_command_writes_the_page(tmp_path, monkeypatch, capfd):
    (tmp_path / "train.py").write_text(
        "def train(task):\n    import time\n    while task.index:\n        time.sleep(1)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["cluster", "run", "train.py:train", "--hang-seconds", "2"]) == 1
    said = capfd.readouterr().err
    assert "worker 1 is at train.py:4 in train" in said and "hang-report.html shows each task" in said
    assert "train.py:4 in train" in (tmp_path / "hang-report.html").read_text()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CourseError, match="records cannot be kept in .*file"):
        hangs.watch(tmp_path / "file", "worker 0")


OWN = """
    import sys
    from course_lib import hangs

    hangs.watch(sys.argv[1], f"worker {sys.argv[2]}", seconds=2, end=True)
    for step in range(3):
        hangs.step(step)
        if sys.argv[2] == "1" and step == 2:
            sys.stdin.readline()
        if sys.argv[2] == "0" and step == 2:
            import threading
            threading.Event().wait()
"""


def test_a_program_of_ones_own_is_watched_without_a_cluster(tmp_path):
    program = tmp_path / "own.py"
    program.write_text(textwrap.dedent(OWN))
    words = [sys.executable, str(program), str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*words, "0"], **pipes) as first, subprocess.Popen([*words, "1"], **pipes) as second:
        assert (first.wait(60), second.wait(60)) == (75, 75)
        assert "worker 0: No task made progress for 2 s." in first.stderr.read()
    text = (tmp_path / "hang-report.txt").read_text()
    assert "own.py:9 in <module>" in text and "own.py:12 in <module>" in text
