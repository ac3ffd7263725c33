"""What runs beside learner code: the form of answers, the guard, the channel, and the order of looks."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from course_lib.exercises.judge import same
from course_lib.staff.grade.sandbox_side import answers, channel, exercise_stub
from course_lib.staff.grade.sandbox_side.answers import Unreadable, pack, unpack

PLAIN = {
    "numbers": [1, -2.5, True, None, "text", float("inf")],
    "array": np.arange(6, dtype="float32").reshape(2, 3),
    "text": np.array(["a", "bc"]),
    "nothing": np.zeros((0, 4)),
    "flag": np.array(True),
    "nested": {"d": [{"a": 1}], "a": [["<f4", [1], "AAAA"]]},
}


def test_plain_values_come_back_as_they_were():
    back = unpack(pack(PLAIN))
    assert same(back, PLAIN) and back["array"].dtype == np.float32 and back["text"].dtype == PLAIN["text"].dtype
    assert back["nothing"].shape == (0, 4) and back["flag"].shape == ()


def test_half_a_surrogate_pair_becomes_a_text_that_a_file_takes():
    unpack(pack({"said": "a\ud800b"}))["said"].encode()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[" * 100_000,
        "1" * 5_000,
        '{"x": 1}',
        '{"a": 1}',
        '{"a": [1, 2]}',
        '{"a": ["<f4", [1], "AAAA"]}',
        '{"a": ["|O", [1], "AAAAAAAAAAA="]}',
        '{"a": ["<f4", [-1], ""]}',
        '{"a": ["<f4", [4294967296, 4294967296], ""]}',
        '{"a": ["<f4", [true], "AAAAAA=="]}',
        '{"a": ["<M8[s]", [1], "AAAAAAAAAAA="]}',
        '{"a": ["<U0", [9], ""]}',
        '{"a": ["f4,f4", [1], "AAAAAAAAAAA="]}',
        '{"d": [1]}',
        json.dumps([[[]]] * 2)[:-1],
    ],
)
def test_what_pack_did_not_write_is_unreadable(line):
    with pytest.raises(Unreadable):
        unpack(line)


def test_answers_have_a_largest_size(monkeypatch):
    monkeypatch.setattr(answers, "LARGEST_BYTES", 100)
    with pytest.raises(ValueError, match="MiB is the most"):
        pack(["a" * 200])


def test_the_check_of_a_notebook_gives_no_verdict(capsys):
    exercise = exercise_stub.Exercise("00_start_here")
    assert exercise("q1") is None and "feedback page" in capsys.readouterr().out and "feedback page" in repr(exercise)


# The guard and the channel change a process for good, so each case has one of its own.

HEAD = """
import operator, socket, sys
import numpy as np
from course_lib.staff.grade.sandbox_side import channel, guard
from course_lib.exercises import ask as asking
from course_lib.exercises.probes import ex00
"""


def tried(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    return done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize(
    "change, name",
    [
        ("pass", ""),
        ("np.allclose = lambda *_: True", "numpy.allclose"),
        ("asking.plain = lambda value, key='': value", "course_lib.exercises.ask.plain"),
        ("asking.WRITE_HERE = ''", "course_lib.exercises.ask.WRITE_HERE"),
        ("ex00.len = lambda _: 4", "course_lib.exercises.probes.ex00.len"),
        ("import builtins; builtins.len = lambda _: 4", "builtins.len"),
        ("asking.NotPlain.__init__ = lambda *_: None", "course_lib.exercises.ask.NotPlain.__init__"),
        ("asking.NotPlain.__bases__ = (ValueError,)", "the bases of a class"),
        ("import builtins; builtins.all = lambda _: True; builtins.map = zip", "builtins.all"),
        ("np.random.default_rng = 1", "numpy.random.default_rng"),
        ("operator.is_ = lambda *_: True; np.allclose = 1", "numpy.allclose"),
        ("np.of_my_own = 1; sys.modules['mine'] = sys", ""),
        ("np.__class__ = type('Mine', (type(np),), {'allclose': lambda *_: True})", "the class of a module"),
    ],
)
def test_the_guard_names_what_was_replaced(change, name):
    assert tried(f"changed, _ = guard.take_snapshot()\n{change}\nprint(repr(changed()))").strip() == repr(name)


def test_the_guard_knows_the_functions_of_the_packages_and_no_others():
    said = tried("_, knows = guard.take_snapshot()\nprint(knows(np.allclose), knows(asking.ask), knows(lambda: 1))")
    assert said.split() == ["True", "True", "False"]


KEY, ANSWERED = b"K" * channel.KEY_BYTES, {"answers": "[]", "stopped": False}
RUNNER = """
import os, signal, threading
from types import FunctionType
ours, theirs = socket.socketpair()
QUESTION = ("q1",)

def begin(*steps):
    ours.sendall(b"K" * channel.KEY_BYTES)
    channel.open_channel(theirs.fileno(), sys._getframe(), list(guard.take_snapshot()), (QUESTION,))
    for function, *arguments in steps:
        function(*arguments)

def tell(record):
    sys.audit("course.record")

def _look(question, record={"answers": "[]", "stopped": False}):
    sys.audit("course.check")
    sys.audit("course.record")

def cell(code):
    exec(code, {"module": sys.modules["__main__"]})

def records():
    theirs.close()
    return ours.recv(10_000).decode()
"""


def lines_of(said: str) -> list[dict]:
    """The records, of which each is sealed at its place."""
    lines = [line.partition(" ")[2].encode() for line in said.strip().splitlines()]
    assert said.strip().encode() + b"\n" == b"".join(channel.sealed(KEY, *one) for one in enumerate(lines))
    return [json.loads(line) for line in lines]


def test_records_leave_with_the_key():
    steps = '(tell, {"begins": 3}), (_look, QUESTION), (cell, "import numpy; numpy.allclose = 1"), (_look, QUESTION)'
    first, second, *third = lines_of(tried(f"{RUNNER}\nbegin({steps})\nprint(records())"))
    assert first == {"begins": 3} and second == ANSWERED and third == [{"changed": "numpy.allclose"}, ANSWERED]


def test_only_lines_with_their_seal_count_and_only_once():
    first, second, forged = (
        channel.sealed(KEY, 0, b"{}"),
        channel.sealed(KEY, 1, b'{"a": 1}'),
        channel.sealed(b"another", 0, b"{}"),
    )
    for stream in (
        first + second,
        forged + b"garbage\n\n" + first + first + forged + second + second,
        b"\n" + first + second[:-1] + b"\n",
    ):
        for size in (1, 7, len(stream)):
            reader = channel.Unsealed(KEY)
            pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
            assert [record for piece in pieces for record in reader.take(piece)] == [b"{}", b'{"a": 1}']
            assert reader.size == len(stream)
    assert channel.Unsealed(KEY).take(second + first) == [b"{}"]


@pytest.mark.parametrize("record", [{"begins": "q1"}, {"error": 'a"\\\u2028', "at": 0, "end": True, "no": None}, {}])
def test_a_record_is_one_object_of_plain_values(record):
    text = json.dumps(record).encode()
    assert channel.has_form(text) and not channel.has_form(text[:-1]) and not channel.has_form(text + b" ")


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b'{"a": {}}',
        b'{"a": []}',
        b'{"a": 1, }',
        b'{"a": %b}' % (b"9" * 50),
        b'{"a": ' + b"[" * 100_000,
        b'{"a": "' + b"x" * channel.LARGEST_RECORD + b'"}',
        b'{"a": "' + b'\\"' * 1_000_000,
    ],
    ids=range(8),
)
def test_a_record_of_another_form_counts_as_none(text):
    assert not channel.has_form(text)
    assert channel.Unsealed(KEY).take(channel.sealed(KEY, 0, text)) == []


@pytest.mark.parametrize(
    "code, says",
    [
        ("import signal; signal.signal(signal.SIGALRM, print)", "a signal's handler"),
        ("import gc; gc.callbacks.append(print)", "garbage collector"),
        ("import numpy; numpy.float32 = 1", "numpy.float32"),
    ],
)
def test_what_could_run_beside_a_probe_is_told(code, says):
    between, before, _ = lines_of(
        tried(
            f"{RUNNER}\nbegin((cell, {code!r}), (sys.audit, 'course.look'), (_look, QUESTION))\n"
            "print(records(), flush=True)\nos._exit(0)"
        )
    )
    assert says in between["changed"] and says in before["changed"]


@pytest.mark.parametrize(
    "attack, reason",
    [
        ("import sys; record = {}; sys.audit('course.record')", "the grader's own functions"),
        ("module.tell({})", "the grader's own functions"),
        ("module._look(module.QUESTION)", "the grader's own functions"),
        ("import gc; gc.get_objects()", "gc.get_objects"),
        ("import sys; sys.settrace(print)", "sys.settrace"),
        ("import sys; sys.setprofile(None)", "sys.setprofile"),
        ("import sys; sys._current_frames()", "sys._current_frames"),
        ("import ctypes; ctypes.c_int.from_address(1)", "ctypes.cdata"),
        ("module.asking.plain.__code__ = (lambda value, key='': value).__code__", "the code of plain"),
        ("import sys; sys.addaudithook(print)", "sys.addaudithook"),
    ],
)
def test_reaching_for_the_channel_ends_the_process(attack, reason):
    assert ended(f"(cell, {attack!r})") == {"refused": reason}


@pytest.mark.parametrize(
    "step, reason",
    [
        ("(_look, tuple(['q1']))", "the grader's own questions"),
        ("(tell, {'answers': '[]'})", "the grader's own questions"),
        ("(lambda: _look(QUESTION),)", "the grader's own functions"),
        ("(FunctionType((lambda: sys.audit('course.record')).__code__, globals()),)", "the grader's own functions"),
    ],
)
def test_a_record_comes_from_the_runners_own_code_and_questions(step, reason):
    assert ended(step) == {"refused": reason}


def ended(step: str) -> dict:
    """What a process printed that the hook ended at this step."""
    code = f"""
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), records())
    else:
        begin({step})
        os._exit(0)
    """
    said = tried(RUNNER + textwrap.dedent(code))
    assert said.startswith(f"{channel.REFUSED_EXIT} "), said
    return lines_of(said.partition(" ")[2])[0]


def test_a_fork_that_comes_back_tells_nothing():
    code = """
    def forks():
        if child := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

    begin((forks,), (tell, {"begins": 1}))
    print(records())
    """
    ended_with, _, printed = tried(RUNNER + textwrap.dedent(code)).partition("\n")
    assert ended_with == str(channel.REFUSED_EXIT) and lines_of(printed) == [{"begins": 1}]


def test_an_honest_cell_may_do_what_lessons_do():
    code = """
    def honest():
        import collections, logging, tempfile
        Point = collections.namedtuple("Point", "x y", defaults=(1,))
        def own(x, y=1): return x
        own.__defaults__ = (2,)
        own.__code__ = (lambda x, y=3: y).__code__
        with tempfile.TemporaryFile() as file:
            file.write(b"1")
        logging.getLogger("mine").warning("said")
        thread = threading.Thread(target=own, args=(1,))
        thread.start(), thread.join()

    begin((honest,), (_look, QUESTION))
    print(records())
    """
    assert lines_of(tried(RUNNER + textwrap.dedent(code)).splitlines()[0]) == [ANSWERED]
