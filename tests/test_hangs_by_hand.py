"""What a report of a hang says, word by word, of tasks that are written by hand; starts nothing."""

from dataclasses import replace

import pytest

from course_lib import hangs
from course_lib.hangs import recorder, stillness
from course_lib.hangs.evidence import Evidence, Frame
from course_lib.hangs.recorder import CollectiveCall

PROGRAM = Frame("/home/me/train.py", 7, "train")
CALL = Frame("/x/site-packages/tensorflow/python/eager/context.py", 1688, "call_function")
JOIN = Frame("/x/site-packages/tensorflow/python/eager/context.py", 745, "ensure_initialized")
JAX = Frame("/x/site-packages/jax/_src/array.py", 5, "_value")
NEXT = Frame("/x/site-packages/iterator_ops.py", 3, "next")
AT = "train.py:7 in train"


def task(number=0, calls=("step: A",) * 3, inside=True, stack=(CALL, PROGRAM), **known) -> Evidence:
    """A task in its last call, or behind it."""
    entered = tuple(CollectiveCall(n, text, n < len(calls) or not inside) for n, text in enumerate(calls, 1))
    return Evidence(f"worker {number}", collectives=entered, threads=(tuple(stack),), **known)


def joining(number: int, says: str, listed: str = "worker: a:1 b:2", **known) -> Evidence:
    return Evidence(f"worker {number}", threads=((JOIN, PROGRAM),), cluster=f"{says} of {listed}", **known)


IN_IT = f"worker 0 is in step: A, called at {AT}."
GENERATOR = (
    (CALL, PROGRAM),
    (Frame("/lib/python3.11/threading.py", 9, "wait"), PROGRAM, replace(NEXT, file="script_ops.py")),
)
RETURNED = {"state": "returned", "inside": False, "stack": ()}
OTHER = "worker: b:2 a:1"
THREE = "worker: 10.0.0.1:9 10.0.0.2:9 10.0.0.3:9"
SHARED = "worker: h:1 h:2 k:3"


@pytest.mark.parametrize(
    "tasks, cause, about, seen",
    [
        ([task(), task(1, state="stopped")], "stopped", 1, "worker 1 was stopped by a signal; the others wait for it."),
        ([task(), task(1, state="ended", step=4)], "lost", 1, "worker 1 has ended without returning after step 4."),
        ([task(), task(1, state="ended")], "lost", 1, "worker 1 has ended without returning after 3 collectives."),
        ([Evidence("worker 0"), Evidence("worker 1", "ended")], "lost", 1, "worker 1 has ended without returning."),
        (
            [task(), task(1, calls=("step: A", "step: B", "step: A"))],
            "other order",
            1,
            "Call 2 with collectives is step: B on worker 1 and step: A elsewhere.",
        ),
        (
            [task(), task(1, calls=("step: A", "step: A", "save: B")), task(2)],
            "entered alone",
            1,
            "worker 1 is in a call that no other makes: save: B.",
        ),
        (
            [task(0, calls=("step: A", "save: B")), task(1, calls=("save: B", "step: A"))],
            "other order",
            0,
            "Call 1 with collectives is step: A on worker 0 and save: B elsewhere.",
        ),
        (
            [task(), task(1, ("step: A",) * 2, **RETURNED)],
            "data ended",
            1,
            f"worker 1 returned after 2 collectives; {IN_IT}",
        ),
        (
            [task(calls=("step: A", "save: B")), task(1, ("step: A",), **RETURNED)],
            "entered alone",
            0,
            f"worker 0 is in a call that no other makes: save: B, called at {AT}.",
        ),
        (
            [task(0, **RETURNED), task(1, inside=False, stack=(PROGRAM,)), task(2, inside=False, stack=(), now="load")],
            "own code",
            1,
            f"worker 0 returned; worker 1 is at {AT}, worker 2 is in load.",
        ),
        (
            [task(0, **RETURNED), task(1, **RETURNED)],
            "unknown",
            None,
            "No task stands out: worker 0 at an unknown place; ",
        ),
        (
            [task(), task(1, inside=False, stack=())],
            "own code",
            1,
            f"worker 1 is at a place that is not known; {IN_IT}",
        ),
        ([task(), task(1, inside=False, stack=(), now="save")], "own code", 1, f"worker 1 is in save; {IN_IT}"),
        (
            [task(), replace(task(1, inside=False), threads=GENERATOR)],
            "input",
            1,
            f"worker 1 is in its input, at {AT}; {IN_IT}",
        ),
        ([task(), task(1, inside=False, stack=(NEXT, PROGRAM))], "input", 1, f"worker 1 is at {AT}; {IN_IT}"),
        ([task(), task(1, inside=False, stack=(PROGRAM, NEXT))], "own code", 1, f"worker 1 is at {AT}; {IN_IT}"),
        (
            [task(0, (), stack=(*[CALL] * 5, JAX, PROGRAM)), task(1, (), stack=(*[CALL] * 6, JAX, PROGRAM))],
            "own code",
            1,
            f"worker 1 is at {AT}; worker 0 is in a call of JAX, called at {AT}.",
        ),
        ([task(), replace(task(1), threads=GENERATOR)], "input", 1, f"worker 1 waits for its input, at {AT}."),
        (
            [task(), task(1, waits={"futex_do_wait": 2, "nfs_wait_bit": 1})],
            "input",
            1,
            "worker 1 waits for a file or a pipe (in the kernel's nfs_wait_bit).",
        ),
        (
            [replace(task(n), threads=GENERATOR, waits={"pipe_read": 1}) for n in (0, 1)],
            "unknown",
            None,
            f"No task stands out: worker 0 at {AT}; worker 1 at {AT}.",
        ),
        ([task(0, now="step"), task(1, stack=(), now="step")], "unknown", None, f"worker 0 at {AT}; worker 1 at step."),
        (
            [joining(0, "worker 0"), joining(1, "worker 1"), joining(2, "worker 2", OTHER)],
            "other cluster",
            2,
            f"worker 2 waits for {OTHER}; the others for worker: a:1 b:2.",
        ),
        (
            [joining(0, "worker 0"), joining(1, "worker 0", OTHER)],
            "other cluster",
            1,
            f"worker 1 waits for {OTHER}; the others for worker: a:1 b:2.",
        ),
        (
            [joining(0, "worker 1", OTHER), joining(1, "worker 1")],
            "other cluster",
            0,
            f"worker 0 waits for {OTHER}; the others for worker: a:1 b:2.",
        ),
        (
            [joining(0, "worker 0"), joining(1, "worker 0")],
            "other cluster",
            1,
            "worker 1 calls itself worker 0, and so does another task.",
        ),
        (
            [joining(0, "worker 0"), Evidence("worker 1", threads=((PROGRAM,),))],
            "not started",
            1,
            f"worker 1 has not joined the cluster: it is at {AT}.",
        ),
        (
            [joining(0, "worker 0"), Evidence("worker 1", "returned")],
            "not started",
            1,
            "worker 1 returned without joining the cluster.",
        ),
        ([joining(n, f"worker {n}") for n in (0, 1)], "unknown", None, "All tasks wait for the cluster to form."),
        (
            [task(cluster=f"worker 0 of {THREE}"), task(1, links=(("established", "10.0.0.3:70", 5, 4),)), task(2)],
            "unreachable",
            2,
            "worker 1 gets no answer from worker 2, after 4 tries.",
        ),
        (  # two tasks on one host are known by their ports alone
            [task(cluster=f"worker 0 of {SHARED}"), task(1, links=(("no answer yet", "h:9", 0, 1),))],
            "unreachable",
            1,
            "worker 1 gets no answer from h:9, after 1 tries.",
        ),
        (
            [task(), task(1, links=(("established", "h:9", 5, 1), ("established", "h:9", 0, 7)))],
            "unknown",
            None,
            "No task ",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_cause_in_its_words(tasks, cause, about, seen):
    found = hangs.diagnose(tasks)
    assert (found.cause, found.task) == (cause, "" if about is None else f"worker {about}"), found
    assert seen in found.seen and str(found) == f"{found.seen} {found.remedy}"
    if about is not None:
        assert found.seen == seen


@pytest.mark.parametrize(
    "frame", [("threading.py", "acquire"), ("threading.py", "wait"), ("threading.py", "join"), ("queue.py", "get")]
    + [("queue.py", "put"), ("threading.py", "_wait_for_tstate_lock"), ("threading.py", "__enter__")]
)  # fmt: skip
def test_a_lock_is_known_by_its_functions(frame):
    lock = Frame(f"/lib/python3.11/{frame[0]}", 1, frame[1])
    for above, cause in (((), "lock"), ((CALL,) * 2, "lock"), ((CALL,) * 3, "own code")):
        assert hangs.diagnose([task(), task(1, inside=False, stack=(*above, lock, PROGRAM))]).cause == cause


def test_a_report_as_it_is_shown(tmp_path):
    deep = (PROGRAM, *[CALL] * 12)
    links = (
        ("established", "h:1", 0, 0),
        ("listens", "h:2", 0, 0),
        ("established", "h:3", 7, 0),
        ("no answer yet", "h:4", 0, 2),
    )
    first = task(calls=tuple(f"step: {n}" for n in range(10)), stack=deep, links=links, step=4, quiet=12.6, busy=0.256)
    first = replace(first, memory_bytes=3 * 2**20, sent_bytes=12_345, waits={"futex": 2, "pipe": 1})
    second = Evidence("worker 1", "returned", threads=((PROGRAM,), (CALL,)))
    found = hangs.HangReport((first, second), 60.4)
    assert found.summary.startswith(
        "No task made progress for 60 s. Look at worker 0 (entered alone): worker 0 is in a call "
    )
    assert hangs.HangReport((first, second), 0).summary.startswith("A task failed. Look at")
    alike = hangs.HangReport((Evidence("worker 0"), Evidence("worker 1")), 5)
    assert alike.summary.startswith("No task made progress for 5 s. No task stands out: ") and alike.links().rows == ()
    table, calls, waiting, *stacks = repr(found).split("\n\n")[1:]
    assert table.splitlines() == [
        "Each task",
        "task      state     step  collectives  quiet s  cores  MiB  sent B  where",
        "worker 0  running      4           10       13   0.26    3  12,345  train.py:7 in train",
        "worker 1  returned     -            0        -      -    -       -  train.py:7 in train",
    ]
    shown = [f"{n}     step: {n - 1}" + " " * 14 + "-" for n in range(3, 10)]
    assert calls.splitlines() == [
        "The last calls with collectives",
        "call  worker 0             worker 1",
        *shown,
        "10    step: 9  (is in it)  -",
    ]
    assert waiting.splitlines() == [
        "Connections that wait for an answer",
        "task      connection     to   not acknowledged B  tries",
        "worker 0  established    h:3                   7      0",
        "worker 0  no answer yet  h:4                   0      2",
    ]
    kernel = "threads that wait in the kernel: 2 in futex, 1 in pipe"
    frames = [f"  {AT}", *["  context.py:1688 in call_function"] * 11]
    assert stacks[0].splitlines() == ["worker 0", "main thread", *frames, "  and 1 more", kernel]
    assert stacks[1].splitlines() == ["worker 1", "main thread", frames[0], "thread 1", frames[1]]
    twelve = hangs.HangReport((replace(first, threads=(deep[:12],)),), 1).stacks()["worker 0"]
    assert twelve.splitlines() == ["main thread", *frames, kernel]
    assert found.write(tmp_path / "shown") == tmp_path / "shown.html"
    assert (tmp_path / "shown.txt").read_text(encoding="utf-8") == f"{found!r}\n"


def test_a_record_by_hand(tmp_path):
    path = recorder.path_of(tmp_path / "new" / "folder", "worker 0")
    assert path == tmp_path / "new" / "folder" / "records" / "worker 0.record"
    writer = recorder.Recorder(path)
    first = recorder.read(path)
    assert (first.notes, first.step, first.now, first.cluster, first.collectives) == (1, None, "", "", ())
    writer.step(0)
    writer.join(b"worker 0 of worker: a:1")
    assert writer.enter(b"load", False) == 0 and writer.enter(b"x" * 241, True) == 1
    found = recorder.read(path)
    assert (found.notes, found.step, found.cluster) == (5, 0, "worker 0 of worker: a:1") and recorder.notes(path) == 5
    assert found.now == "x" * 240 and found.collectives == (CollectiveCall(1, "x" * 240, False),)
    writer.leave(1)
    assert recorder.read(path).collectives == (CollectiveCall(1, "x" * 240, True),) and recorder.read(path).now == ""
    assert recorder.read(recorder.Recorder(path) and path).notes == 1  # begins afresh in the same folder
    path.write_bytes(b"half")
    assert recorder.notes(path) == 0


def test_a_process_keeps_one_record(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "_own", [])
    monkeypatch.setattr(recorder.time, "time", lambda: 1234.5)
    first = recorder.record(tmp_path, "worker 0")
    assert recorder.record(tmp_path, "worker 1") is first
    recorder.step(5)
    found = recorder.read(recorder.path_of(tmp_path, "worker 0"))
    assert (found.step, found.seconds) == (5, 1234.5) and recorder.read(recorder.path_of(tmp_path, "worker 1")) is None


def test_a_notes_text_by_hand():
    assert recorder.encoded("step", []) == b"step" and recorder.encoded("step", ["A", "B"]) == b"step: A, B"
    assert recorder.encoded("x" * 240, []) == b"x" * 240
    long = recorder.encoded("x" * 241, [])
    assert len(long) == 238 and long.startswith(b"x" * 226 + b"... ") and int(long[-8:], 16)


def test_stillness_by_hand(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(stillness.time, "monotonic", lambda: now[0])
    assert [stillness.Stillness(seconds).pause for seconds in (5, 10, 60)] == [0.5, 1, 1]
    still = stillness.Stillness(10)
    assert not still.hangs("seen", {"a": 7.0}) and still.busy == {"a": 0}
    now[0] = 110.0
    assert not still.hangs("seen", {"a": 8.0, "b": 3.0}) and still.busy == {
        "a": 0.1,
        "b": 0,
    }  # a tenth of a core computes
    now[0] = 130.0
    assert still.hangs("seen", {"a": 10.0})
