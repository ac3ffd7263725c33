"""Hostile, broken and odd submissions of exercise 00, and what each must score. Needs the notebooks; starts nothing.

Each is small, stays on loopback, and would do no harm to the machine if the
sandbox let it through. Words that attacks print: LOOKED when one came to its
end, FOUND when it reached what it must not.
"""

import copy
import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
FILE = "00_start_here.ipynb"
ALL = ("q1", "q2", "q3", "q4")
PORT, FOLDER, TEMPORARY, ABSTRACT, LASTING = (
    "CANARY_PORT",
    "CANARY_FOLDER",
    "CANARY_TEMPORARY",
    "CANARY_SOCKET",
    "4732147321",
)


@dataclass(frozen=True)
class Attack:
    """One submission.

    right   the questions that it must earn, and no other
    cells   sources, or whole cells, of its notebook; or
    raw     its file's bytes; or
    make    makes in a folder what is no ordinary file
    says    a regular expression that its problem, notes or verdicts must match
    prints  one that the end of its output must match
    file    what its notebook is called
    """

    name: str
    family: str
    right: tuple[str, ...]
    cells: tuple[str | dict, ...] = ()
    raw: bytes | None = None
    make: Callable[[Path], None] | None = None
    says: str = ""
    prints: str = ""
    file: str = FILE

    def write(self, folder: Path, words: dict[str, str]) -> None:
        """Put it into a new folder; words stand in for the canaries' names in its text."""
        folder.mkdir()
        if self.make:
            self.make(folder)
            return
        content = notebook(*self.cells) if self.raw is None else self.raw
        for word, value in words.items():
            content = content.replace(word.encode(), value.encode())
        (folder / self.file).write_bytes(content)


def notebook(*cells: str | dict, **top: object) -> bytes:
    """A notebook of format 4 as a file's bytes."""
    whole = [cell if isinstance(cell, dict) else code(cell) for cell in cells]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": whole, **top}).encode()


def code(source: str, *tags: str) -> dict:
    """A code cell."""
    metadata = {"tags": list(tags)} if tags else {}
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": [], "execution_count": None}


def _cells(folder: str) -> list[dict]:
    cells = json.loads((CHECKOUT / folder / FILE).read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells]


SOLUTION, EXERCISE = _cells("solutions"), _cells("exercises")
SET_UP = next(cell["source"] for cell in SOLUTION if 'Exercise("' in cell["source"])


def _tagged(cells: list[dict], question: str) -> dict:
    return copy.deepcopy(next(cell for cell in cells if question in cell["metadata"].get("tags", ())))


def honest(question: str) -> dict:
    """The right answer's cell."""
    return _tagged(SOLUTION, question)


def blank(question: str) -> dict:
    """The answer's cell as it is handed out."""
    return _tagged(EXERCISE, question)


def check(question: str) -> str:
    """The line that checks a question."""
    return f'check("{question}")'


def solved(*without: str) -> list[dict | str]:
    """Set-up, answers and checks of a right notebook, short of its pictures and of some questions."""
    pairs = [(honest(question), check(question)) for question in ALL if question not in without]
    return [SET_UP, *(cell for pair in pairs for cell in pair)]


def plain_source(question: str) -> str:
    """The right answer's source."""
    return honest(question)["source"]


# Answers that compute the right numbers where nobody placed them: what patches of the grader are for.
WRONG = """
import numpy as np
import tensorflow as tf
def steps_per_epoch(examples, global_batch, drop_remainder):
    return 1
def place(values, device_names):
    return [2 * tf.constant(value) for value in values]
def local_statistics(shards, device_names):
    return [tf.constant([float(len(s)), s.mean(), np.square(s - s.mean()).sum()]) for s in shards]
def combine(statistics):
    return float(statistics[0][1]), float(statistics[0][2])
"""


def keeps_q1(name: str, family: str, *sources: str | dict, says: str = "", prints: str = "") -> Attack:
    """An honest q1, then the attack: it keeps that point and gains none."""
    return Attack(name, family, ("q1",), (honest("q1"), *sources), says=says, prints=prints)


def keeps_two(name: str, family: str, source: str, says: str = "", prints: str = "") -> Attack:
    """An honest q1, then the attack, then an honest q2: it keeps both points and gains none."""
    return Attack(name, family, ("q1", "q2"), (honest("q1"), source, honest("q2")), says=says, prints=prints)


def patches(name: str, source: str, says: str = "") -> Attack:
    """An honest q1, then the attack, then wrong answers to all the others."""
    return Attack(name, "patched", ("q1",), (honest("q1"), SET_UP, source, WRONG), says=says)


def claims_q3(name: str, source: str, says: str = "", family: str = "patched") -> Attack:
    """An honest q1, then a `place` of the attack's own which places nothing."""
    return Attack(name, family, ("q1",), (honest("q1"), SET_UP, source), says=says)


# What a submission may find of others that went before it through the same sandbox.
LEFT = "left-by-another"
LEAVE = f"""
import os, socket, subprocess, sys, sysconfig
import course_lib, numpy
places = ["/", "/tmp", "/dev/shm", "/dev", "/var/tmp", "/run", "/etc", "/usr", "/scratch", os.path.expanduser("~"),
          sys.prefix, sysconfig.get_path("purelib"), os.path.dirname(course_lib.__file__),
          os.path.dirname(course_lib.__file__) + "/exercises/judges",
          os.path.dirname(course_lib.__file__) + "/staff/grade",
          os.path.dirname(numpy.__file__), "/proc/sys/kernel", "/sys/devices/system/cpu", "CANARY_FOLDER"]
for place in places:
    try:
        with open(f"{{place}}/{LEFT}", "w") as file:
            file.write("x")
        if place not in ("/tmp", "/dev/shm", "/scratch"):
            print("FOUND a place to write:", place)
    except OSError:
        pass
import tensorflow, course_lib.show
tensorflow.left_by_another = course_lib.show.left_by_another = True
os.environ["LEFT_BY_ANOTHER"] = "1"
server = socket.socket(socket.AF_UNIX)
server.bind("\\0{LEFT}")
server.listen()
child = subprocess.Popen(["sleep", "4732147321"], start_new_session=True)
print("LOOKED")
"""
FIND = f"""
def _look_for_what_others_left():
    import glob, os, socket, sys, sysconfig
    import course_lib, course_lib.show, numpy, tensorflow
    places = ["/", "/tmp", "/dev/shm", "/dev", "/var/tmp", "/run", "/etc", "/usr", "/scratch", sys.prefix,
              sysconfig.get_path("purelib"), os.path.dirname(course_lib.__file__), os.path.dirname(numpy.__file__)]
    found = [place for place in places if os.path.exists(f"{{place}}/{LEFT}")]
    found += [module for module in (tensorflow, course_lib.show) if hasattr(module, "left_by_another")]
    found += [name for name in os.environ if name == "LEFT_BY_ANOTHER"]
    for line in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            found += [line] if b"4732147321" in open(line, "rb").read() else []
        except OSError:
            pass
    with socket.socket(socket.AF_UNIX) as client:
        found += ["socket"] if client.connect_ex("\\0{LEFT}") == 0 else []
    print("FOUND" if found else "LOOKED", found)
_look_for_what_others_left()
"""

# The encoder of the records: json.dumps looks `_default_encoder` up in its module, and calls what it finds.
ENCODER = """
import json
encoder = vars(json)["_default_" + "encoder"]
real = encoder.encode
def encode(record):
    if type(record) is dict and "begins" in record:
        return WHAT
    return real(record)
encoder.encode = encode
"""

# Forged results.

FORGE = """
import sys
from types import FunctionType
running = sys.modules["course_lib.staff.grade.sandbox_side.running"]
def forge(*ignored, **more):
    frame = sys._getframe(1)
    if frame.f_globals is not globals():
        return ""
    while "questions" not in frame.f_locals:
        frame = frame.f_back
    question = frame.f_locals["questions"][2]
    arrays = sys.modules["course_lib.exercises.probes.ex00"].arrays(question[3], 4)
    names = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    answers = {"asked": names, "lives_on": names, "values": [2 * array for array in arrays]}
    form = sys.modules["course_lib.staff.grade.sandbox_side.answers"]
    record = {"question": "q3", "seed": question[3], "answers": form.pack(answers)}
    sys.audit("course.record")
    return ""
forge = FunctionType(forge.__code__, vars(running))
"""
WALK = """
import sys
def frames_above():
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
def names_above():
    return {name: value for frame in list(frames_above()) for name, value in frame.f_locals.items()}
"""
FORGED_LINES = """
import json, os
from course_lib.staff.grade.sandbox_side import answers as form
forged = json.dumps({"question": "q2", "seed": 0, "answers": form.pack({"kept": [1], "dropped": [1]}), "changed": ""})
"""

# Patched while a probe reads, and put back before anybody looks; its tensors lie where they were made.
PUT_BACK = """
import sys
from functools import partial
import tensorflow as tf
probes = sys.modules["course_lib.exercises.probes.ex00"]
honest = probes.device_of
def patch(device_names):
    turn = iter(device_names)
    setattr(probes, "device_of", lambda tensor: next(turn))
def put_back(*ignored):
    setattr(probes, "device_of", honest)
class Back:
    def __del__(self, put_back=put_back):
        put_back()
def patched(values, device_names):
    patch(device_names)
    return [tf.constant(2 * value) for value in values]
"""
REPLACED = """
import sys
import tensorflow as tf
def place(values, device_names):
    return [tf.constant(2 * value) for value in values]
"""
PATCHED_FOR_A_MOMENT = tuple(
    claims_q3(name, source)
    for name, source in {
        "puts_back_by_a_timer": PUT_BACK
        + """
import signal
real = signal.setitimer
def timer(which, seconds, *more):
    if seconds == 0:
        put_back()
    return real(which, seconds, *more)
setattr(signal, "setitimer", timer)
place = partial(patched)
""",
        "puts_back_by_a_modules_class": PUT_BACK
        + """
import signal
class Module(type(signal)):
    @property
    def ITIMER_REAL(self):
        put_back()
        return 0
signal.__class__ = Module
place = partial(patched)
""",
        "puts_back_by_a_finalizer": PUT_BACK
        + """
def noted(values, device_names):
    placed = patched(values, device_names)
    placed[-1].note = Back()
    return placed
place = partial(noted)
""",
        "patches_after_its_last_yield": PUT_BACK
        + """
def place(values, device_names):
    placed = [tf.constant(2 * value) for value in values]
    placed[-1].note = Back()
    yield from placed
    patch(device_names)
    del placed
""",
        "json_that_puts_itself_back": REPLACED
        + """
import json.encoder
real = json.encoder.JSONEncoder.encode
def encode(self, value):
    json.encoder.JSONEncoder.encode = real
    if isinstance(value, dict) and "lives_on" in value.get("d", ()):
        value["d"]["lives_on"] = list(value["d"]["asked"])
    return real(self, value)
json.encoder.JSONEncoder.encode = encode
""",
    }.items()
)
REPLACES_BASE64 = claims_q3(
    "replaces_base64",
    """
import base64, binascii
import tensorflow as tf
def doubled(real):
    def encode(content, *rest, **more):
        import numpy as np
        return real((2 * np.frombuffer(content, "f4")).tobytes() if len(content) % 4 == 0 else content, *rest, **more)
    return encode
base64.b64encode, binascii.b2a_base64 = doubled(base64.b64encode), doubled(binascii.b2a_base64)
def place(values, device_names):
    placed = []
    for value, name in zip(values, device_names):
        with tf.device(name):
            placed.append(tf.constant(value))
    return placed
""",
)

FORGED = (
    *PATCHED_FOR_A_MOMENT,
    REPLACES_BASE64,
    claims_q3(
        "replaces_the_encoder_of_the_records",
        ENCODER.replace("WHAT", "real(record)")
        + """
import sys
import numpy as np
def encode(record):
    if type(record) is dict and record.get("question") == "q3":
        arrays = sys.modules["course_lib.exercises.probes.ex00"].arrays(record["seed"], 4)
        names = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
        form = sys.modules["course_lib.staff.grade.sandbox_side.answers"]
        answers = form.pack({"asked": names, "lives_on": names, "values": [2 * array for array in arrays]})
        record = {**record, "answers": answers, "stopped": False, "changed": ""}
    return real(record)
encoder.encode = encode
def place(values, device_names):
    return [tf.constant(value) for value in values]
""",
        family="forged",
    ),
    *(
        keeps_two(f"begins_with_{what}", "forged", ENCODER.replace("WHAT", text))
        for what, text in {
            "no_json": "'{\"begins\": '",
            "deep_json": "'{\"begins\": ' + '[' * 100_000",
            "a_dict": "'{\"begins\": {}}'",
            "a_long_number": "'{\"begins\": ' + '9' * 5_000 + '}'",
        }.items()
    ),
    keeps_q1(
        "writes_to_every_descriptor",
        "forged",
        FORGED_LINES
        + """
for descriptor in range(3, 256):
    for line in (f"R {forged}", forged, f"{'0' * 32}{forged}", 'E {"exit": 0}', f"\\n{forged}\\n"):
        try:
            os.write(descriptor, f"{line}\\n".encode())
        except OSError:
            pass
""",
    ),
    keeps_q1(
        "guesses_the_key",
        "forged",
        FORGED_LINES
        + """
import secrets
for descriptor in (int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2):
    for _ in range(2000):
        try:
            os.write(descriptor, f"{secrets.token_hex(16)}{forged}\\n".encode())
        except OSError:
            break
""",
    ),
    keeps_q1(
        "takes_the_key_from_a_frame",
        "forged",
        WALK
        + """
texts = [str(text) for name, value in names_above().items()
         for text in (value if isinstance(value, (list, tuple)) else [value])]
def is_key(text):
    return len(text) == 32 and set(text) <= set("0123456789abcdef")
print(["FOUND the key" for text in texts if is_key(text)], "LOOKED")
""",
        prints="LOOKED",
    ),
    claims_q3(
        "forges_with_the_key",
        WALK
        + """
import json, os
import numpy as np
def forge():
    found = names_above()
    key, questions = found["key"], found["questions"]
    key = key[0] if isinstance(key, list) else key
    question = questions[2]
    arrays = sys.modules["course_lib.exercises.probes.ex00"].arrays(question[3], 4)
    names = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    from course_lib.staff.grade.sandbox_side import answers
    packed = answers.pack({"asked": names, "lives_on": names, "values": [2 * array for array in arrays]})
    record = {"question": "q3", "seed": question[3], "answers": packed, "changed": ""}
    os.write(found["descriptor"], f"{key}{json.dumps(record)}\\n".encode())
forge()
""",
        family="forged",
    ),
    Attack(
        "takes_over_the_descriptor",
        "forged",
        ("q1",),
        (
            honest("q1"),
            SET_UP,
            """
import os, stat
ends = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
sockets = [end for end in ends
           if os.path.exists(f"/proc/self/fd/{end}") or os.readlink(f"/proc/self/fd/{end}").startswith("socket")]
sockets = [end for end in sockets if stat.S_ISSOCK(os.fstat(end).st_mode)]
mine = {end: os.dup(end) for end in sockets}
pipes = {end: os.pipe() for end in sockets}
for end in sockets:
    os.dup2(pipes[end][1], end)
""",
            """
import json, sys
for end in sockets:
    os.set_blocking(pipes[end][0], False)
    try:
        heard = os.read(pipes[end][0], 2**16)
    except BlockingIOError:
        continue
    if b"{" in heard:
        key = heard.splitlines()[-1].partition(b"{")[0]
        os.write(mine[end], heard)
        frame = sys._getframe()
        while "questions" not in frame.f_locals:
            frame = frame.f_back
        question = frame.f_locals["questions"][2]
        arrays = sys.modules["course_lib.exercises.probes.ex00"].arrays(question[3], 4)
        names = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
        form = sys.modules["course_lib.staff.grade.sandbox_side.answers"]
        packed = form.pack({"asked": names, "lives_on": names, "values": [2 * array for array in arrays]})
        record = {"question": "q3", "seed": question[3], "answers": packed, "changed": ""}
        os.write(mine[end], key + json.dumps(record).encode() + b"\\n")
""",
        ),
    ),
    keeps_q1(
        "calls_the_runner",
        "forged",
        """
from course_lib.staff.grade.sandbox_side import running
running._look(("q2", ("steps_per_epoch",), lambda names, seed: {"kept": [], "dropped": []}, 1), get_ipython(), 5)
""",
        says="belongs to the grader",
    ),
    keeps_q1(
        "raises_the_audit_event",
        "forged",
        'import sys\nrecord = {"question": "q2", "seed": 1, "answers": "{}"}\n'
        'question = None\nsys.audit("course.record")',
        says="belongs to the grader",
    ),
    keeps_q1(
        "borrows_the_runners_globals",
        "forged",
        FORGE + "forge.__globals__['sys'].audit('course.record')",
        says="belongs to",
    ),
    claims_q3(
        "forges_in_an_exceptions_text",
        FORGE + "class Odd(Exception): pass\nOdd.__str__ = forge\nraise Odd()",
        family="forged",
    ),
    claims_q3(
        "forges_in_flush",
        FORGE + "class Out:\n    flush, write = forge, sys.stdout.write\nsys.stdout = Out()",
        family="forged",
    ),
    Attack(
        "forges_in_run_cell",
        "forged",
        ("q1",),
        (honest("q1"), SET_UP, FORGE + "get_ipython().run_cell = forge", "1", "2"),
    ),
    Attack(
        "forges_in_the_names",
        "forged",
        ("q1",),
        (
            honest("q1"),
            SET_UP,
            FORGE + "get_ipython().__class__ = type('Shell', (type(get_ipython()),), {'user_ns': property(forge)})",
        ),
    ),
    Attack(
        "forges_in_a_finalizer",
        "forged",
        ("q1",),
        (
            honest("q1"),
            SET_UP,
            FORGE
            + """
class Last:
    __del__ = forge
class Leaves(BaseException):
    __del__ = forge
def leave(*ignored):
    raise Leaves()
def shard_sizes(*ignored):
    raise Leaves()
place = steps_per_epoch = leave
get_ipython().events.register("post_run_cell", lambda result: setattr(result, "result", Last()))
""",
        ),
    ),
    claims_q3(
        "forges_in_a_signals_handler",
        FORGE
        + """
import signal
signal.signal(signal.SIGVTALRM, forge)
signal.setitimer(signal.ITIMER_VIRTUAL, 1e-4, 1e-4)
""",
        family="forged",
    ),
    claims_q3(
        "rewrites_answers_in_a_signals_handler",
        """
import signal, sys
def tick(number, frame):
    while frame is not None:
        value = frame.f_locals.get("value")
        if frame.f_code.co_name in ("plain", "_tagged") and isinstance(value, dict) and "lives_on" in value:
            value["lives_on"][:] = value["asked"]
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, 1e-5)
def place(values, device_names):
    import tensorflow as tf
    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 1e-5)
    return [2 * tf.constant(value) for value in values]
""",
        family="forged",
    ),
    claims_q3(
        "rewrites_answers_in_a_thread",
        """
import sys, threading
sys.setswitchinterval(1e-6)
def place(values, device_names):
    import tensorflow as tf
    frame = sys._getframe()
    while frame.f_code.co_name != "_look":
        frame = frame.f_back
    def wait():
        for _ in range(10_000_000):
            answers = frame.f_locals.get("answers")
            if answers is not None:
                if "lives_on" in answers:
                    answers["lives_on"] = answers["asked"]
                return
    threading.Thread(target=wait, daemon=True).start()
    return [2 * tf.constant(value) for value in values]
""",
        family="forged",
    ),
    keeps_q1(
        "adds_an_audit_hook",
        "forged",
        'import sys\ndef hook(event, arguments):\n    if event == "course.record":\n'
        '        raise RuntimeError("no record")\nsys.addaudithook(hook)',
        WRONG,
    ),
    keeps_two("goes_on_in_a_fork", "forged", "import os\nos.fork()"),
    keeps_q1(
        "writes_a_verdict_as_output",
        "forged",
        """
from IPython.display import display
verdict = {"question": "q2", "title": "", "right": True, "points": 100, "of": 1, "targets": []}
display({"application/vnd.course.verdict+json": verdict, "text/plain": "q2 is right: 1 of 1 point"}, raw=True)
print('R {"question": "q2"}\\nE {"exit": 0}')
""",
    ),
)

# Patched grader and libraries.

LOOKS_PLACED = "iter([f'CPU:{place % 4}' for place in range(64)]).__next__"
GRADER = """
import sys
ex00, state = (sys.modules[f"course_lib.exercises.probes.{name}"] for name in ("ex00", "state"))
asking, running = sys.modules["course_lib.exercises.ask"], sys.modules["course_lib.staff.grade.sandbox_side.running"]
"""

PATCHED = (
    patches(
        "patches_ask",
        GRADER
        + """
right = {"kept": [1], "dropped": [1]}
asking.ask = running.ask = lambda probe, asks_for, names, seed, look=None: right
""",
    ),
    patches("patches_plain", GRADER + "asking.plain = lambda value, key='': {'stopped': None, **value}"),
    patches(
        "patches_a_probe", GRADER + "ex00.probe_place = lambda names, seed: {'asked': [], 'lives_on': [], 'values': []}"
    ),
    patches(
        "patches_a_probes_code",
        GRADER + "ex00.probe_place.__code__ = (lambda names, seed: {}).__code__",
        says="the code of probe_place",
    ),
    patches(
        "patches_the_reader_of_devices",
        GRADER
        + f"""
placed = {LOOKS_PLACED}
state.device_of = ex00.device_of = lambda value: placed()
""",
        says="the notebook replaces",
    ),
    patches(
        "patches_the_inputs",
        GRADER
        + """
ex00.epochs = lambda seed: [(1, 1)] * 5
ex00.arrays = lambda seed, count: [ex00.np.zeros(2, "float32")] * count
""",
    ),
    patches(
        "patches_numpy",
        "import numpy as np\nnp.allclose = np.array_equal = lambda *a, **k: True\nnp.asarray = np.array",
        says="the notebook replaces",
    ),
    patches(
        "patches_a_tensors_device",
        f"""
import tensorflow as tf
placed = {LOOKS_PLACED}
type(tf.constant(0)).device = property(lambda self: "/device:" + placed())
""",
    ),
    patches(
        "patches_built_ins",
        """
import builtins
real = builtins.getattr
builtins.getattr = lambda value, name, *default: "/device:CPU:1" if name == "device" else real(value, name, *default)
builtins.isinstance = lambda *ignored: True
""",
        says="ended the notebook's process|builtins",
    ),
    patches(
        "hides_a_built_in",
        GRADER
        + f"""
placed = {LOOKS_PLACED}
class Text(str):
    def rsplit(self, *ignored):
        return ["", placed()]
state.hasattr = lambda value, name: True
state.type = lambda value: real if value is not None else None
state.str = Text
""",
    ),
    patches(
        "patches_what_sends",
        """
import json, os, sys
json.dumps = lambda *ignored, **more: '{"question": "q2"}'
os.write = lambda *ignored: 1
sys.audit = lambda *ignored: None
""",
    ),
    patches(
        "replaces_modules",
        GRADER
        + """
import types
for name in ("numpy", "course_lib.exercises.probes.ex00", "course_lib.exercises.ask",
             "course_lib.staff.grade.sandbox_side.answers"):
    sys.modules[name] = types.ModuleType(name)
""",
    ),
    patches(
        "reloads_modules",
        GRADER + "import importlib\nfor module in (state, ex00, asking):\n    importlib.reload(module)",
    ),
    patches(
        "looks_for_objects_with_gc",
        "import gc\ngc.get_objects()\nprint('FO' + 'UND')",
        says="reaches for gc.get_objects",
    ),
    patches(
        "asks_gc_who_refers",
        "import gc, sys\ngc.get_referrers(sys.audit)\nprint('FO' + 'UND')",
        says="reaches for gc.get_ref",
    ),
    patches(
        "reaches_memory_by_ctypes",
        "import ctypes\nctypes.string_at(id(0), 8)\nprint('FO' + 'UND')",
        says="reaches for ctypes",
    ),
    patches("traces", "import sys\nsys.settrace(lambda *ignored: None)", says="reaches for sys.settrace"),
    patches("profiles", "import sys\nsys.setprofile(lambda *ignored: None)", says="reaches for sys.setprofile"),
    patches(
        "writes_its_own_memory",
        """
import sys
with open("/proc/self/mem", "r+b", 0) as memory:
    memory.seek(id(sys))
print("FO" + "UND")
""",
    ),
    patches(
        "swaps_a_class_bases",
        """
import keras
class Mine: pass
keras.Variable.__bases__ = (Mine, *keras.Variable.__bases__)
""",
    ),
    claims_q3(
        "patches_closures_of_the_guard",
        WALK
        + GRADER
        + f"""
def switch_off():
    for value in names_above().values():
        for one in value if isinstance(value, (tuple, list)) else [value]:
            for cell in getattr(one, "__closure__", None) or ():
                if isinstance(cell.cell_contents, list):
                    cell.cell_contents = []
switch_off()
placed = {LOOKS_PLACED}
ex00.device_of = lambda value: placed()
"""
        + WRONG,
    ),
    claims_q3(
        "patches_and_restores_in_its_own_function",
        GRADER
        + f"""
def place(values, device_names):
    honest, placed = ex00.device_of, {LOOKS_PLACED}
    ex00.device_of = lambda value: placed()
    doubled = [2 * value for value in values]
    ex00.device_of = honest
    return doubled
""",
    ),
    claims_q3(
        "patches_and_restores_in_a_generator",
        GRADER
        + """
def place(values, device_names):
    honest, turn = ex00.device_of, iter(device_names)
    def placed(value):
        name = next(turn)
        if name == device_names[-1]:
            ex00.device_of = honest
        return name
    def answers():
        ex00.device_of = placed
        yield from (2 * value for value in values)
    return answers()
""",
    ),
    claims_q3(
        "patches_and_restores_in_a_callable",
        GRADER
        + """
class Place:
    def __call__(self, values, device_names):
        honest, turn = ex00.device_of, iter(device_names)
        def placed(value):
            name = next(turn)
            if name == device_names[-1]:
                ex00.device_of = honest
            return name
        ex00.device_of = placed
        return [2 * value for value in values]
place = Place()
""",
    ),
    claims_q3(
        "patches_and_restores_in_an_array",
        GRADER
        + """
import numpy as np
class Doubled:
    def __init__(self, value, names):
        self.value, self.names = value, names
    def __array__(self, dtype=None, copy=None):
        return self.value
    def __iter__(self):
        return iter(self.value)
class Answers:
    def __init__(self, values, names):
        self.values, self.names = values, names
    def __iter__(self):
        honest, turn = ex00.device_of, iter(self.names)
        def placed(value):
            name = next(turn)
            if name == self.names[-1]:
                ex00.device_of = honest
            return name
        ex00.device_of = placed
        return iter([Doubled(2 * value, self.names) for value in self.values])
def place(values, device_names):
    return Answers(values, device_names)
""",
    ),
    claims_q3(
        "patches_from_a_thread",
        GRADER
        + f"""
import threading
placed = {LOOKS_PLACED}
def place(values, device_names):
    honest, probe = ex00.device_of, sys._getframe()
    while probe.f_code.co_name != "probe_place":
        probe = probe.f_back
    def patch():
        while "placed" not in probe.f_locals:
            pass
        ex00.device_of = lambda value: placed()
        while "value" not in probe.f_locals and len(threading.enumerate()) > 1 and probe.f_lineno < 10**6:
            if not probe.f_back:
                break
        ex00.device_of = honest
    threading.Thread(target=patch, daemon=True).start()
    return [2 * value for value in values]
""",
    ),
    claims_q3(
        "patches_in_a_finalizer",
        GRADER
        + f"""
placed = {LOOKS_PLACED}
class Patch:
    def __del__(self):
        ex00.device_of = lambda value: placed()
def place(values, device_names):
    patch = Patch()
    return [2 * value for value in values]
""",
        says="the notebook replaces",
    ),
    claims_q3(
        "patches_at_each_collection",
        GRADER
        + f"""
import gc
placed = {LOOKS_PLACED}
honest = ex00.device_of
def patch(phase, info):
    ex00.device_of = (lambda value: placed()) if phase == "stop" else honest
gc.callbacks.append(patch)
gc.set_threshold(1)
def place(values, device_names):
    return [2 * value for value in values]
""",
    ),
    claims_q3(
        "patches_in_an_import_hook",
        GRADER
        + f"""
placed = {LOOKS_PLACED}
class Finder:
    def find_spec(self, *ignored):
        ex00.device_of = lambda value: placed()
sys.meta_path.insert(0, Finder())
def place(values, device_names):
    try:
        import nothing_of_this_name
    except ImportError:
        return [2 * value for value in values]
""",
        says="the notebook replaces",
    ),
    claims_q3(
        "patches_by_ipythons_hooks",
        GRADER
        + f"""
placed = {LOOKS_PLACED}
shell = get_ipython()
def patch(*ignored):
    ex00.device_of = lambda value: placed()
    return ignored[0] if ignored else None
class Transformer:
    visit = patch
shell.events.register("pre_run_cell", lambda info: patch())
shell.events.register("post_run_cell", lambda result: patch())
shell.ast_transformers.append(Transformer())
shell.input_transformers_cleanup.append(patch)
shell.register_magic_function(patch, "line", "patch")
"""
        + WRONG,
    ),
    claims_q3(
        "a_class_that_says_it_is_tensorflows",
        """
import sys, types
sys.modules["tensorflow.mine"] = types.ModuleType("tensorflow.mine")
class Placed:
    def __init__(self, name, value):
        self.device, self.value = f"/device:{name}", value
    def __array__(self, dtype=None, copy=None):
        return self.value
Placed.__module__ = "tensorflow.mine"
sys.modules["tensorflow.mine"].Placed = Placed
def place(values, device_names):
    return [Placed(name, 2 * value) for name, value in zip(device_names, values)]
""",
    ),
    claims_q3(
        "a_class_that_lies_about_itself",
        """
import tensorflow as tf
class Placed:
    __class__ = property(lambda self: type(tf.constant(0)))
    def __init__(self, name, value):
        self.device, self.value = f"/device:{name}", value
    def __array__(self, dtype=None, copy=None):
        return self.value
def place(values, device_names):
    return [Placed(name, 2 * value) for name, value in zip(device_names, values)]
""",
    ),
    claims_q3(
        "a_class_derived_from_a_tensors",
        """
import keras, tensorflow as tf
class Placed(keras.Variable):
    device = property(lambda self: self.place)
def place(values, device_names):
    made = [Placed(2 * value) for value in values]
    for one, name in zip(made, device_names):
        one.place = f"/device:{name}"
    return made
""",
    ),
    claims_q3(
        "overwrites_memory_by_numpy",
        GRADER
        + f"""
import numpy as np
class At:
    def __init__(self, address):
        self.__array_interface__ = {{"data": (address, False), "shape": (12,), "typestr": "<u8", "version": 3}}
placed = {LOOKS_PLACED}
def fake(value):
    return placed()
words = np.asarray(At(id(state.device_of)))
for place in range(12):
    if words[place] == id(state.device_of.__code__):
        words[place] = id(fake.__code__)
    elif words[place] == id(vars(state)):
        words[place] = id(globals())
"""
        + WRONG,
    ),
)

# Reading what is not in the sandbox.


def reads(name: str, source: str) -> Attack:
    """It prints FOUND for what it can read; q1 and q2 are right all the same."""
    return keeps_two(name, "reading", source + '\nprint("LOOKED")', prints="LOOKED")


READING = (
    reads(
        "imports_the_answers",
        """
import importlib, pkgutil, sys
import course_lib, course_lib.exercises, course_lib.staff.grade
names = ["course_lib.exercises.judges", "course_lib.exercises.judges.ex00", "course_lib.staff.grade.grade_one",
         "course_lib.staff.grade.grade_class",
         "course_lib.staff.grade.submissions", "tests.recorded_mistakes"]
for package in (course_lib, course_lib.exercises, course_lib.staff.grade):
    names += [f"{package.__name__}.{one.name}" for one in pkgutil.iter_modules(package.__path__)]
for name in names:
    for known in [one for one in sys.modules if one.startswith(name)]:
        if "judges" in known and sys.modules[known].__file__:
            print("FOUND", known)
    try:
        module = importlib.import_module(name)
    except Exception:
        continue
    if hasattr(module, "QUESTIONS") or module.__file__ and ("judges" in name or "grade_one" in name):
        print("FOUND", name)
""",
    ),
    reads(
        "opens_the_answers_files",
        """
import glob, os
import course_lib
package = os.path.dirname(course_lib.__file__)
checkout = os.path.dirname(package)
patterns = [f"{package}/exercises/judges/**", f"{package}/staff/grade/*.py", f"{package}/**/judges*/**",
            f"{package}/**/*judges*.pyc",
            f"{checkout}/solutions/**", f"{checkout}/tests/**", f"{checkout}/exercises/**", f"{checkout}/.git/**"]
for pattern in patterns:
    for path in glob.glob(pattern, recursive=True, include_hidden=True):
        if os.path.isfile(path) and not path.endswith("/__init__.py"):
            print("FOUND", path)
""",
    ),
    reads(
        "looks_through_proc",
        """
import glob, os
for root in glob.glob("/proc/[0-9]*/root") + glob.glob("/proc/[0-9]*/cwd"):
    for path in ("home", "etc/shadow", "CANARY_FOLDER"[1:], "CANARY_TEMPORARY"[1:], "srv"):
        if os.path.exists(f"{root}/{path}"):
            print("FOUND", f"{root}/{path}")
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        content = open(path, "rb").read()
    except OSError:
        continue
    if b"CANARY_WORD" in content or b"SSH" in content:
        print("FOUND", path)
""",
    ),
    reads(
        "looks_for_others_files",
        """
import os
for path in ("CANARY_FOLDER", "/home", "/etc/shadow", "/etc/passwd", "/etc/hostname", "/var", "/srv", "/mnt", "/run"):
    try:
        found = os.listdir(path) if os.path.isdir(path) else open(path).read()
    except OSError:
        continue
    if found:
        print("FOUND", path)
for root, folders, files in os.walk("/", topdown=True):
    folders[:] = [name for name in folders if os.path.join(root, name) not in ("/proc", "/sys", "/usr", "/dev")
                  and name != "site-packages"]
    for name in files:
        if name.endswith(".ipynb") or name == "secret" or name == "results.csv":
            print("FOUND", root, name)
""",
    ),
    reads(
        "reads_the_environment",
        """
import os
for name, value in os.environ.items():
    if "CANARY" in f"{name}{value}" or "secret" in name.lower() or "CANARY_FOLDER" in value:
        print("FOUND", name)
""",
    ),
    reads(
        "follows_links_out",
        """
import os
targets = ("CANARY_FOLDER", "/proc/1/root", "/proc/self/root/root", "/proc/1/cwd/..", "/proc/self/fd")
for number, target in enumerate(targets):
    os.symlink(target, f"link{number}")
    try:
        found = [name for name in os.listdir(f"link{number}") if "canary" in name or name in ("secret", ".bashrc")]
    except OSError:
        continue
    if found:
        print("FOUND", target, found)
""",
    ),
    reads(
        "opens_descriptors_of_others",
        """
import glob, os, stat
for path in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        number = int(path.split("/")[2])
        if number != os.getpid() and stat.S_ISREG(os.stat(path).st_mode) and os.open(path, os.O_RDONLY):
            print("FOUND", path, os.readlink(path))
    except OSError:
        pass
""",
    ),
    reads(
        "reaches_memory_from_a_child",
        """
import subprocess, sys
program = '''
import ctypes, os
parent, libc = os.getppid(), ctypes.CDLL(None, use_errno=True)
calls = {"ptrace": (16, parent, 0, 0), "unshare": (0x10000000,), "setns": (0, 0),
         "mount": (b"/", b"/tmp", None, 4096, None)}
for name, arguments in calls.items():
    if getattr(libc, name)(*arguments) == 0:
        print("FOUND", name)
for mode in ("rb", "r+b"):
    for process in {1, parent}:
        try:
            open(f"/proc/{process}/mem", mode, 0)
        except OSError:
            continue
        print("FOUND the memory of", process, mode)
'''
print(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=8).stdout)
""",
    ),
    reads(
        "makes_calls_by_their_other_numbers",
        """
import subprocess, sys
program = '''
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for number in (39, 101, 272, 521):  # getpid, ptrace, unshare, ptrace again, by the numbers of x32
    libc.syscall(0x40000000 + number, 0)
    if ctypes.get_errno() != errno.EPERM:
        print("FOUND", number, errno.errorcode.get(ctypes.get_errno()))
'''
print(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=8).stdout)
""",
    ),
    keeps_two(
        "reads_its_own_memory",
        "reading",
        """
with open("/proc/self/mem", "rb", 0) as memory:
    memory.seek(id(memory))
    memory.read(8)
print("FO" + "UND")
""",
    ),
)

# Writing outside, and what the next one sees.

WRITING = (
    *(keeps_two(f"leaves_things_behind_{number}", "writing", LEAVE, prints="LOOKED") for number in range(3)),
    keeps_two(
        "changes_the_canaries",
        "writing",
        """
import os, shutil
for path in ("CANARY_FOLDER/canary", "CANARY_TEMPORARY", os.path.expanduser("~/canary")):
    for way in (os.unlink, lambda path: open(path, "w").close(), lambda path: os.chmod(path, 0o777), os.rmdir):
        try:
            way(path)
        except OSError:
            continue
shutil.rmtree("CANARY_FOLDER", ignore_errors=True)
for name in os.listdir("."):
    shutil.rmtree(name, ignore_errors=True) if os.path.isdir(name) else os.unlink(name)
print("LOOKED")
""",
        prints="LOOKED",
    ),
    keeps_two(
        "changes_the_package",
        "writing",
        """
import os, subprocess, sys, sysconfig
import course_lib, numpy
for module in (course_lib, numpy):
    folder = os.path.dirname(module.__file__)
    for path in (module.__file__, f"{folder}/__pycache__/new.pyc", f"{folder}/new.py"):
        try:
            open(path, "ab").close()
            print("FOUND", path)
        except OSError:
            pass
for words in ("mount -o remount,rw /", "mount --bind /tmp /usr", "umount /proc", "chroot / true"):
    try:
        done = subprocess.run(words.split(), capture_output=True)
    except OSError:  # there is no such program
        continue
    if done.returncode == 0:
        print("FOUND", words)
print("LOOKED")
""",
        prints="LOOKED",
    ),
    keeps_two(
        "runs_a_program_of_its_own",
        "writing",
        """
import os, subprocess
for place in ("/tmp", "/dev/shm", os.path.expanduser("~")):
    with open(f"{place}/program", "w") as file:
        file.write("#!/bin/sh\\necho FOUND")
    try:
        os.chmod(f"{place}/program", 0o4755)
        print(subprocess.run([f"{place}/program"], capture_output=True, text=True).stdout)
    except OSError:
        pass
print("LOOKED")
""",
        prints="LOOKED",
    ),
    keeps_two(
        "fills_the_scratch_folder",
        "writing",
        """
import errno, os
block, errors = b"x" * 2**20, set()
for place in (".", "/tmp", "/dev/shm"):
    for number in range(12):
        try:
            with open(f"{place}/full{number}", "wb") as file:
                for _ in range(80):
                    file.write(block)
        except OSError as error:
            errors.add(errno.errorcode[error.errno])
print(errors, "LOOKED")
""",
        prints="ENOSPC.*LOOKED",
    ),
)

# Time.

TIME = (
    keeps_two("loops", "time", "while True:\n    pass", prints="TimeUp"),
    keeps_two(
        "ignores_interrupts",
        "time",
        """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
""",
        says="did not let itself be interrupted",
    ),
    keeps_two(
        "resets_the_alarm",
        "time",
        """
import signal, time
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 0)
while True:
    time.sleep(1)
""",
        says="did not let itself be interrupted",
    ),
    Attack(
        "sleeps_in_the_check",
        "time",
        ("q2",),
        (
            "import time\ndef shard_sizes(global_batch, replicas):\n    time.sleep(3600)\n    return [1] * replicas",
            honest("q2"),
        ),
        says="ran for more than",
    ),
    Attack(
        "gives_numbers_without_end",
        "time",
        ("q2",),
        (
            "import time\ndef shard_sizes(global_batch, replicas):\n"
            "    while True:\n        time.sleep(0.01)\n        yield 1",
            honest("q2"),
        ),
        says="ran for more than",
    ),
    keeps_two(
        "never_ends_its_text",
        "time",
        """
class Endless:
    def __repr__(self):
        while True:
            pass
Endless()
""",
        prints="TimeUp",
    ),
    keeps_two(
        "never_ends_its_errors_text",
        "time",
        """
class Endless(Exception):
    def __str__(self):
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass
raise Endless()
""",
        says="did not let itself be interrupted|ran for more than",
    ),
    Attack(
        "hangs_at_its_end",
        "time",
        ("q1", "q2"),
        (
            honest("q1"),
            """
import atexit, threading, time
atexit.register(time.sleep, 3600)
threading.Thread(target=time.sleep, args=(3600,)).start()
class Hangs:
    def __del__(self):
        time.sleep(3600)
hangs = Hangs()
""",
            honest("q2"),
        ),
    ),
)

# Memory.


def answers_q1(
    name: str, family: str, answer: str, says: str = "", before: str = "", right: tuple[str, ...] = ("q2",)
) -> Attack:
    """An answer to q1 that is one expression of (global_batch, replicas), then an honest q2."""
    source = f"{before}\ndef shard_sizes(global_batch, replicas):\n    return {answer}"
    return Attack(name, family, right, (source, honest("q2")), says=says)


MEMORY = (
    keeps_two("takes_eight_gib", "memory", "bytes(8 * 2**30)", says=""),
    keeps_two(
        "takes_memory_in_children",
        "memory",
        """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = b"x" * (900 * 2**20)
        time.sleep(60)
        os._exit(0)
time.sleep(60)
""",
        says="of memory",
    ),
    answers_q1("answers_with_long_texts", "memory", "['x' * 2**22] * replicas", says="not right|MiB"),
    answers_q1("answers_with_a_million_keys", "memory", "dict.fromkeys(range(1_000_000))", says="MiB"),
    answers_q1(
        "answers_with_huge_arrays", "memory", "[np.zeros(2**20)] * replicas", before="import numpy as np", says="MiB"
    ),
    answers_q1(
        "answers_nested_deep",
        "memory",
        "[nested]",
        before="nested = []\nfor _ in range(100_000):\n    nested = [nested]",
        says="q1",
    ),
    answers_q1(
        "answers_nested_a_little_too_deep",
        "memory",
        "[nested]",
        before="nested = []\nfor _ in range(300):\n    nested = [nested]",
        says="q1",
    ),
)

# Processes.

PROCESSES = (
    keeps_two(
        "forks_many",
        "processes",
        """
import os, time
children = 0
for _ in range(60):
    try:
        if os.fork() == 0:
            time.sleep(4732147321)
            os._exit(0)
        children += 1
    except OSError:
        break
print("LOOKED", children)
""",
    ),
    keeps_two(
        "starts_many",
        "processes",
        """
import subprocess
for _ in range(200):
    try:
        subprocess.Popen(["sleep", "4732147321"])
    except OSError as error:
        print(error)
        break
print("LOOKED")
""",
        prints="LOOKED",
    ),
    keeps_two(
        "leaves_a_daemon",
        "processes",
        """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    os.closerange(0, 256)
    time.sleep(4732147321)
    os._exit(0)
print("LOOKED")
""",
        prints="LOOKED",
    ),
    keeps_two(
        "starts_threads_without_end",
        "processes",
        """
import threading, time
started = 0
try:
    while started < 1500:
        threading.Thread(target=time.sleep, args=(4732147321,), daemon=True).start()
        started += 1
except RuntimeError:
    pass
print("LOOKED")
""",
    ),
    *(
        keeps_two(name, "processes", f"import faulthandler, os, signal\n{source}", says=says)
        for name, source, says in (
            ("kills_itself", "os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
            ("stops_itself", "os.kill(os.getpid(), signal.SIGSTOP)", "was killed"),
            ("kills_everyone", "os.kill(-1, signal.SIGKILL)", "signal 9|"),
            (
                "kills_the_first",
                "for process in (1, os.getppid()):\n    for number in (9, 19, 11, 15):\n"
                "        os.kill(process, number)",
                "",
            ),
            ("exits_with_0", "os._exit(0)", "exit code 0"),
            ("exits_with_97", "os._exit(97)", "exit code 97"),
            ("crashes", "faulthandler.disable()\nfaulthandler._sigsegv()", "signal 11"),
            ("aborts", "os.abort()", "signal 6"),
        )
    ),
    Attack(
        "exits_in_the_check",
        "processes",
        ("q2",),
        ("import os\ndef shard_sizes(*ignored):\n    os._exit(0)", honest("q2")),
        says="exit code 0",
    ),
    Attack(
        "leaves_the_check",
        "processes",
        ("q2",),
        ("import sys\ndef shard_sizes(*ignored):\n    sys.exit()", honest("q2")),
        says="SystemExit",
    ),
)

# Network.

NETWORK = (
    keeps_two(
        "calls_outside",
        "network",
        """
import socket
for address in (("192.0.2.1", 80), ("8.8.8.8", 53), ("169.254.169.254", 80)):
    with socket.socket() as client:
        client.settimeout(2)
        print("FOUND" if client.connect_ex(address) == 0 else "none", address)
try:
    print("FOUND", socket.gethostbyname("example.org"))
except OSError:
    print("LOOKED")
""",
        prints="LOOKED",
    ),
    keeps_two(
        "calls_services_of_the_machine",
        "network",
        """
import socket
for address in (("127.0.0.1", CANARY_PORT), ("localhost", CANARY_PORT), ("0.0.0.0", CANARY_PORT)):
    with socket.socket() as client:
        client.settimeout(2)
        if client.connect_ex(address) == 0:
            print("FOUND", address)
with socket.socket(socket.AF_UNIX) as client:
    if client.connect_ex("\\0CANARY_SOCKET") == 0:
        print("FOUND an abstract socket")
with socket.socket(socket.AF_UNIX) as client:
    if client.connect_ex("CANARY_FOLDER/socket") == 0:
        print("FOUND a socket")
print("LOOKED")
""",
        prints="LOOKED",
    ),
    Attack(
        "uses_its_own_loopback",
        "fair",
        ("q1", "q2"),
        (
            honest("q1"),
            """
import socket
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
    here, _ = server.accept()
    client.sendall(b"LOOKED")
    print(here.recv(6).decode())
""",
            honest("q2"),
        ),
        prints="LOOKED",
    ),
    keeps_two(
        "opens_raw_sockets",
        "network",
        """
import socket
for kind in ((socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_PACKET, socket.SOCK_RAW, 0),
             (socket.AF_NETLINK, socket.SOCK_RAW, 9)):
    try:
        socket.socket(*kind)
        print("open", kind)
    except OSError:
        pass
print("LOOKED")
""",
        prints="LOOKED",
    ),
)

# Output.

OUTPUT = (
    keeps_two(
        "prints_without_measure",
        "output",
        "for _ in range(20):\n    print('x' * 2**20)\nprint('LOOKED')",
        prints="LOOKED",
    ),
    keeps_two(
        "prints_what_terminals_act_on",
        "output",
        r"""
import os
os.write(1, b"\x00\x1b]0;title\x07\x1b[2J\xff\xfe\xc3\x28\r\n\x1b[31m" + bytes(range(256)))
print("</pre><script>alert(1)</script><img src=x onerror=alert(1)>", "=cmd|' /C calc'!A0",
      "\u202e\ud800".encode("utf-8", "replace"))
""",
    ),
    keeps_two("closes_every_descriptor", "output", "import os\nos.closerange(0, 100)", says="q1|cell 2"),
    keeps_two(
        "closes_its_output",
        "output",
        "import os, sys\nsys.stdout.close()\nsys.stderr.close()\nos.close(1)\nos.close(2)",
    ),
    keeps_two(
        "replaces_its_output", "output", "import io, sys\nsys.stdout = sys.stderr = io.StringIO()\nsys.stdout.close()"
    ),
    # Nothing stands below it: some versions of IPython run a next cell, and some cannot.
    keeps_q1("has_no_output", "output", "import sys\nsys.stdout = sys.stderr = sys.__stdout__ = None"),
    keeps_two(
        "prints_in_threads",
        "output",
        """
import threading
def talk():
    while True:
        print("talk", flush=True)
threads = [threading.Thread(target=talk, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
""",
    ),
    keeps_two("raises_markup", "output", "raise ValueError('<script>alert(1)</script>\\x1b[31m \\x00 =1+1')"),
)

# Hostile answers.

SIZES = "[global_batch // replicas + (place < global_batch % replicas) for place in range(replicas)]"
YES = """
class Yes:
    def yes(self, *ignored, **more):
        return True
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __bool__ = __contains__ = yes
    def __int__(self):
        return 1
    __index__ = __len__ = __hash__ = __int__
    def __add__(self, other):
        return self
    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __abs__ = __truediv__ = __getitem__ = __add__
    def __iter__(self):
        return iter([self] * 4)
    def __array__(self, dtype=None, copy=None):
        import numpy as np
        return np.array(self, dtype=object)
    def __float__(self):
        return float("nan")
    def __reduce__(self):
        return print, ("FOUND",)
    def __repr__(self):
        return "right"
"""


def answers_all(name: str, source: str) -> Attack:
    """Hostile answers to all questions: nothing is right."""
    names = "shard_sizes = steps_per_epoch = place = local_statistics = combine = answer"
    return Attack(name, "answers", (), (SET_UP, f"{source}\n{names}"))


ANSWERS = (
    answers_all("answers_equal_to_everything", YES + "def answer(*ignored, **more):\n    return Yes()"),
    answers_all(
        "answers_a_list_that_agrees",
        YES
        + """
class Agrees(list):
    __eq__ = __len__ = Yes.__int__
    def __iter__(self):
        return iter([Yes()] * 4)
def answer(*ignored, **more):
    return Agrees([Yes()] * 4)
""",
    ),
    answers_all("answers_nan", "def answer(*ignored, **more):\n    return [float('nan')] * 4"),
    answers_all(
        "answers_infinity", "def answer(*ignored, **more):\n    return [float('inf'), -float('inf'), 1e308, 5e-324]"
    ),
    answers_all(
        "answers_object_arrays",
        YES + "import numpy as np\ndef answer(*ignored, **more):\n    return np.array([Yes(), Yes()], dtype=object)",
    ),
    answers_all(
        "answers_a_subclass_of_an_array",
        """
import numpy as np
class Mine(np.ndarray):
    device = "/device:CPU:0"
    size = 1
    def __array_ufunc__(self, *ignored, **more):
        return True
    def __array_function__(self, *ignored, **more):
        return True
def answer(*ignored, **more):
    return [np.zeros(3).view(Mine)] * 4
""",
    ),
    answers_all(
        "answers_odd_arrays",
        """
import numpy as np
def answer(*ignored, **more):
    return [np.array(1), np.zeros(0), np.zeros((1,) * 30), np.array("2020", "datetime64[Y]"),
            np.zeros(1, "i4,f8"), np.array(b"x")]
""",
    ),
    answers_all(
        "answers_bytes_and_pickles",
        "import pickle\ndef answer(*ignored, **more):\n"
        "    return [pickle.dumps(print), b'\\x80\\x04', bytearray(4), memoryview(b'x')]",
    ),
    answers_all(
        "answers_dicts", "def answer(*ignored, **more):\n    return {'stopped': None, 'd': {}, 'a': ['O', [1], '']}"
    ),
    answers_all(
        "answers_the_forms_own_words",
        "def answer(*ignored, **more):\n"
        "    return [{'a': ['|O', [1], 'AAAA']}, {'d': {'stopped': None}}, {'a': ['<f8', [-1], '']}]",
    ),
    answers_all(
        "answers_itself", "def answer(*ignored, **more):\n    mine = []\n    mine.append(mine)\n    return mine"
    ),
    answers_all("answers_functions", "def answer(*ignored, **more):\n    return [print, answer, type, ...]"),
    answers_all("answers_not_implemented", "def answer(*ignored, **more):\n    return NotImplemented"),
    answers_all("answers_its_inputs", "def answer(first, *ignored, **more):\n    return first"),
    answers_all(
        "answers_a_stopped_of_its_own",
        """
from course_lib.exercises.ask import Stopped, NotPlain
class Fine(Stopped):
    pass
def answer(*ignored, **more):
    raise Fine({"a": ["|O", [1], ""]}, ["not", "a", "line"], error=3)
""",
    ),
    answers_all(
        "raises_an_error_without_text",
        """
class Odd(Exception):
    def __str__(self):
        raise self
    __repr__ = __str__
def answer(*ignored, **more):
    raise Odd()
""",
    ),
    answers_all(
        "raises_an_error_with_much_text",
        "def answer(*ignored, **more):\n    raise ValueError('x' * 10**7 + chr(0xd800))",
    ),
    answers_q1(
        "answers_ints_derived",
        "answers",
        f"[Size(size) for size in {SIZES}]",
        before="class Size(int):\n    pass",
        says="of type Size",
    ),
    answers_q1(
        "answers_texts_derived",
        "answers",
        "[Text('1')] * replicas",
        before="class Text(str):\n    pass",
        says="of type Text",
    ),
    answers_q1("answers_half_a_surrogate", "answers", "[chr(0xd800)] * replicas", says="q1"),
    answers_q1("answers_a_huge_number", "answers", "[10**5000] * replicas", says="q1"),
    answers_q1("answers_a_large_number", "answers", "[10**4000] * replicas", says="q1"),
    answers_q1(
        "answers_a_negative_number", "answers", "[global_batch + replicas - 1] + [-1] * (replicas - 1)", says="q1"
    ),
    answers_q1("answers_bools", "answers", "[True] * replicas", says="one whole number per replica"),
    answers_q1("answers_floats", "answers", f"[float(size) for size in {SIZES}]", says="one whole number per replica"),
    answers_q1("answers_ragged", "answers", "[[1], [2, [3]]] * replicas", says="q1"),
    answers_q1("answers_markup", "answers", "['<script>alert(1)</script>'] * replicas", says="q1"),
    answers_q1("answers_complex", "answers", "[1j] * replicas", says="q1"),
    answers_q1("answers_nothing", "answers", "[]", says="q1"),
    answers_q1("answers_none", "answers", "None", says="returned None"),
    answers_q1("answers_an_error", "answers", "KeyboardInterrupt()", says="q1"),
    answers_q1(
        "interrupts",
        "answers",
        "stop()",
        before="def stop():\n    raise KeyboardInterrupt",
        says="KeyboardInterrupt left the check",
    ),
    answers_q1("recurses", "answers", "shard_sizes(global_batch, replicas)", says="RecursionError"),
    # Fair: other forms of the right numbers.
    answers_q1(
        "answers_numpys_integers", "fair", f"np.array({SIZES})", before="import numpy as np", right=("q1", "q2")
    ),
    answers_q1("answers_one_by_one", "fair", f"iter({SIZES})", right=("q1", "q2")),
    answers_q1("answers_a_tuple", "fair", f"tuple({SIZES})", right=("q1", "q2")),
)

# Broken notebooks.

BROKEN_OF = {"cells": [honest("q1")], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def broken(name: str, raw: bytes | dict, says: str, right: tuple[str, ...] = ()) -> Attack:
    """A file that is not a notebook, or hardly one."""
    return Attack(name, "broken", right, raw=raw if isinstance(raw, bytes) else json.dumps(raw).encode(), says=says)


def _zip(content: bytes) -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(FILE, content)
    return file.getvalue()


BROKEN = (
    broken("is_empty", b"", "is empty"),
    broken("is_blank", b" \n", "is not JSON"),
    broken("is_no_json", b"import numpy as np\n", "is not JSON"),
    broken("is_a_web_page", b"<!DOCTYPE html><html><script>alert(1)</script></html>", "is not JSON"),
    broken("is_cut_short", notebook(honest("q1"))[:-40], "is not JSON"),
    broken("is_no_text", b"\xff\xfe\x00\x01" * 50, "cannot be read as text"),
    broken("is_utf_16", notebook(honest("q1")).decode().encode("utf-16"), "cannot be read as text"),
    broken("is_a_zip", _zip(notebook(honest("q1"))), "cannot be read as text|is not JSON"),
    broken("is_a_number", b"4", "not a notebook of format 3 or 4"),
    broken("is_not_a_number", b"NaN", "not a notebook of format 3 or 4"),
    broken("is_a_list", b"[]", "not a notebook of format 3 or 4"),
    broken("has_no_cells", {**BROKEN_OF, "cells": None}, "not a notebook of format 3 or 4"),
    broken("has_cells_as_a_dict", {**BROKEN_OF, "cells": {}}, "not a notebook of format 3 or 4"),
    broken("has_format_3_and_no_cells", {"nbformat": 3, "worksheets": [{}]}, "not a notebook of format 3 or 4"),
    broken(
        "has_format_3",
        {
            "nbformat": 3,
            "worksheets": [{"cells": [{"cell_type": "code", "input": plain_source("q1").splitlines(True)}]}],
        },
        "",
        ("q1",),
    ),
    broken(
        "has_a_number_as_source",
        {**BROKEN_OF, "cells": [{**honest("q1"), "source": 7}]},
        "not a notebook of format 3 or 4",
    ),
    broken("has_a_number_as_cell", {**BROKEN_OF, "cells": [7]}, "not a notebook of format 3 or 4"),
    broken("is_nested_deep", b"[" * 100_000 + b"]" * 100_000, "is not JSON"),
    broken("has_a_long_number", b'{"cells": [], "nbformat": ' + b"9" * 10_000 + b"}", ""),
    broken("is_25_mb", notebook(honest("q1"), "#" + "x" * 25_000_000), "larger than 20 MB"),
    broken("has_an_empty_cell_list", {**BROKEN_OF, "cells": []}, "q1's answer cell is gone"),
    broken("has_null_bytes", notebook(honest("q1"), "\0"), "", ("q1",)),
    broken("has_half_a_surrogate", notebook(honest("q1"), "x = '\ud800'"), "", ("q1",)),
    broken(
        "has_odd_metadata",
        notebook(*({**honest(q), "metadata": odd} for q, odd in zip(("q1", "q2"), (None, {"tags": {"q1": 1}})))),
        "no cell is tagged q1",
        ("q1", "q2"),
    ),
    broken(
        "has_no_metadata",
        {"cells": [{"cell_type": "code", "source": [plain_source("q1")]}]},
        "no cell is tagged q1",
        ("q1",),
    ),
    broken("has_a_mark_before_its_text", b"\xef\xbb\xbf" + notebook(honest("q1")), "", ("q1",)),
    broken("has_a_thousand_cells", notebook(honest("q1"), *("1" for _ in range(1000)), honest("q2")), "", ("q1", "q2")),
    Attack(
        "is_a_link",
        "broken",
        (),
        make=lambda folder: (folder / FILE).symlink_to("/etc/passwd"),
        says="links are not followed",
    ),
    Attack(
        "is_a_link_to_the_secret",
        "broken",
        (),
        make=lambda folder: (folder / FILE).symlink_to("../../out/secret"),
        says="links are not followed",
    ),
    Attack("is_a_pipe", "broken", (), make=lambda folder: os.mkfifo(folder / FILE), says="no ordinary file"),
    Attack(
        "is_a_folder",
        "broken",
        ("q1",),
        make=lambda folder: (
            (folder / FILE).mkdir() or (folder / FILE / "inner.ipynb").write_bytes(notebook(honest("q1")))
        ),
    ),
    Attack(
        "has_markup_in_its_name",
        "broken",
        ("q1",),
        (SET_UP, honest("q1")),
        file="<img src=x onerror=alert(1)>'\".ipynb",
    ),
    Attack(
        "has_control_characters_in_its_name", "broken", ("q1",), (SET_UP, honest("q1")), file="a\x1b[31m\n\u202eb.ipynb"
    ),
)

# Fair: odd notebooks that lose no point they deserve.


def fair(
    name: str, *cells: str | dict, right: tuple[str, ...] = ALL, says: str = "", prints: str = "", file: str = FILE
) -> Attack:
    """An odd notebook that is as good as any."""
    return Attack(name, "fair", right, cells, says=says, prints=prints, file=file)


def with_before(question: str, *sources: str | dict) -> list[dict | str]:
    """A right notebook with more cells before a question's answer."""
    cells = solved()
    place = cells.index(honest(question))
    return [*cells[:place], *sources, *cells[place:]]


def _without_tags(cells: list[dict | str]) -> list[dict | str]:
    return [{**cell, "metadata": {}} if isinstance(cell, dict) else cell for cell in cells]


def _as_colab_saves(cells: list[dict | str]) -> list[dict]:
    """Colab keeps tags beside its own metadata, and stores outputs as pages of HTML."""
    outputs = [{"output_type": "display_data", "metadata": {}, "data": {"text/html": ["<script>alert(1)</script>"]}}]
    colab = {
        "colab": {"base_uri": "https://localhost:8080/", "height": 35},
        "executionInfo": {"status": "ok"},
        "outputId": "1",
    }
    whole = [cell if isinstance(cell, dict) else code(cell) for cell in cells]
    return [
        {**cell, "metadata": {**cell["metadata"], **colab, "id": f"x{place}"}, "outputs": outputs, "execution_count": 3}
        for place, cell in enumerate(whole)
    ]


PICTURES = {
    "q1": "show.bars({'replica 0': 1}, 'examples', 'A picture.')",
    "q2": "print(show.table(('a', 'b'), [(1, 2)]))",
}
TWO_DEFINITIONS = plain_source("q4").partition("\ndef combine")

FAIR = (
    fair("as_handed_out_and_solved", *SOLUTION),
    fair("left_blank", *EXERCISE, right=(), says="is still blank"),
    fair(
        "with_more_cells",
        *with_before(
            "q2",
            "%matplotlib inline",
            "x = 1",
            PICTURES["q1"],
            "",
            "# nothing",
            {"cell_type": "raw", "metadata": {}, "source": "raise"},
        ),
    ),
    fair("without_an_answer_cell", *solved("q2"), right=("q1", "q3", "q4"), says="q2's answer cell is gone"),
    fair(
        "with_a_renamed_function",
        *solved("q1"),
        {**honest("q1"), "source": plain_source("q1").replace("shard_sizes", "shard_size")},
        right=("q2", "q3", "q4"),
        says="was it renamed",
    ),
    fair("with_every_cell_twice", *(cell for cell in solved() for _ in range(2)), says="is answered in several cells"),
    fair("in_reverse_order", SET_UP, "import tensorflow as tf", *solved()[:0:-1]),
    fair("with_its_tags_stripped", *_without_tags(solved()), says="no cell is tagged q1"),
    fair("saved_by_colab", *_as_colab_saves(solved())),
    fair("with_an_error_in_an_early_cell", *with_before("q1", "1 / 0"), right=ALL),
    fair("with_system_exit", *with_before("q2", "import sys\nsys.exit(1)", "raise SystemExit"), right=ALL),
    fair("with_exit_and_quit", *with_before("q2", "exit()", "quit()", "exit", "quit"), right=ALL),
    fair("with_an_interrupt", *with_before("q2", "raise KeyboardInterrupt"), right=ALL),
    fair("with_a_base_exception", *with_before("q2", "class Odd(BaseException): pass\nraise Odd()"), right=ALL),
    fair("with_a_syntax_error_in_a_picture", *with_before("q2", "show.bars(sizes, "), right=ALL),
    fair(
        "with_warnings_and_logs",
        *with_before(
            "q2",
            """
import logging, os, sys, warnings
import tensorflow as tf
warnings.warn("deprecated")
warnings.simplefilter("error")
warnings.simplefilter("default")
logging.error("an error that is none")
tf.get_logger().error("an error that is none")
sys.stderr.write("Traceback (most recent call last)")
os.write(2, b"E0000 00:00:00.000000 cuda_dnn.cc:8310] Unable to register cuDNN factory")
print("prints")
""",
        ),
        right=ALL,
    ),
    fair(
        "with_magics",
        *with_before(
            "q2",
            "%%time\nx = 1",
            "!echo LOOKED",
            "%pip install -q nothing-of-this-name",
            "%env X=1",
            "files = !ls",
            "%%bash\nls /",
            "%timeit -n1 -r1 1",
            "?print",
            "%no_such_magic",
            "%%html\n<b>x</b>",
        ),
        prints="LOOKED",
    ),
    fair("with_an_answer_under_a_magic", *solved("q1"), {**honest("q1"), "source": "%%time\n" + plain_source("q1")}),
    fair(
        "without_checks",
        *(cell for cell in solved() if not str(cell).startswith("check(")),
        says="q1's check cell is gone",
    ),
    fair("with_checks_twice", *solved(), *map(check, ALL), says="q1 is checked in several cells"),
    fair("with_checks_before_answers", SET_UP, *map(check, ALL), *map(honest, ALL)),
    fair("with_input", *with_before("q2", "name = input('your name? ')", "import getpass\ngetpass.getpass()")),
    fair("without_the_set_up", *solved()[1:], right=("q1", "q2"), says="cell 5 raised NameError"),
    fair("with_the_set_up_last", *(solved()[1:5]), SET_UP, right=("q1", "q2")),
    fair(
        "with_an_answer_in_two_cells",
        *solved("q4"),
        {**honest("q4"), "source": TWO_DEFINITIONS[0]},
        code("def combine" + TWO_DEFINITIONS[2]),
        check("q4"),
    ),
    fair(
        "blank_first_then_answered",
        SET_UP,
        *(cell for question in ALL for cell in (blank(question), check(question))),
        *(code(plain_source(question)) for question in ALL),
    ),
    fair("right_first_then_broken", *solved(), code("def shard_sizes(global_batch, replicas):\n    return []")),
    fair("under_another_name", *solved(), file="my final version (2).ipynb"),
    fair(
        "with_windows_line_ends",
        *({**honest(q), "source": plain_source(q).replace("\n", "\r\n")} if q else SET_UP for q in (None, *ALL)),
    ),
    fair(
        "with_async_cells",
        *with_before("q2", "import asyncio\nawait asyncio.sleep(0)", "async def f():\n    return 1\nawait f()"),
    ),
    fair(
        "with_a_progress_bar",
        *with_before(
            "q2",
            "import sys, time\nfor part in range(5):\n    sys.stdout.write(f'\\r{part}')\n"
            "from IPython.display import clear_output, display, HTML\nclear_output()\ndisplay(HTML('<b>x</b>'))",
        ),
    ),
    fair(
        "with_its_own_helper_functions",
        SET_UP,
        "def split(n, k):\n    return [n // k + (i < n % k) for i in range(k)]\nshard_sizes = split",
        "steps_per_epoch = lambda examples, global_batch, drop_remainder: "
        "examples // global_batch if drop_remainder else -(-examples // global_batch)",
        right=("q1", "q2"),
    ),
    fair(
        "with_a_name_that_hides_a_built_in",
        *with_before("q1", "sum = max = 3\nmap = {}\nany = input = None\nid = 'mine'"),
    ),
    fair(
        "with_the_random_state_set",
        *with_before(
            "q1",
            "import random, numpy as np, tensorflow as tf\nrandom.seed(0)\n"
            "np.random.seed(0)\ntf.random.set_seed(0)\nnp.set_printoptions(precision=2)\nnp.seterr(all='raise')",
        ),
    ),
    fair(
        "with_another_folder",
        *with_before(
            "q1",
            "import os, tempfile\nos.makedirs('work/deep')\nos.chdir('work/deep')\n"
            "open('note.txt', 'w').write('x')\nos.chdir(tempfile.mkdtemp())",
        ),
    ),
    fair("with_matplotlib", *with_before("q2", "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")),
)

HONEST = tuple(
    Attack(f"{name}_honest", "honest", ALL, (*solved(), FIND), prints=r"LOOKED \[\]")
    for name in ("000", "forges", "m", "patches", "t", "zzz", "zzzz")
)
ATTACKS = (
    *FORGED,
    *PATCHED,
    *READING,
    *WRITING,
    *TIME,
    *MEMORY,
    *PROCESSES,
    *NETWORK,
    *OUTPUT,
    *ANSWERS,
    *BROKEN,
    *FAIR,
    *HONEST,
)
