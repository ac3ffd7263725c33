"""One class of attackers, graded at once by the command line: what each scores, and what must survive them all.

Takes minutes; needs bubblewrap and, for root, util-linux. grade_attacks.py holds the submissions.
"""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from grade_attacks import ABSTRACT, ATTACKS, FOLDER, LASTING, LEFT, PORT, TEMPORARY, Attack, honest
from installed import need, needs_sandbox
from unprivileged import NOBODY, as_nobody, give_to_nobody

need("tensorflow")
pytestmark = [pytest.mark.slow, needs_sandbox]

LIMITS = ("--jobs", "2", "--cell-seconds", "20", "--memory-gib", "4")
CANARY = "must stay as it is\n"
SHARED = (Path("/tmp"), Path("/dev/shm"))


@dataclass(frozen=True)
class Graded:
    """The class after one call: its folder, the call, results by learner, canary files, who called the canaries."""

    folder: Path
    command: list[str]
    environment: dict[str, str]
    done: subprocess.CompletedProcess
    results: dict[str, dict]
    canaries: tuple[Path, ...]
    callers: list[str]
    fresh: set[Path]
    lasting: str


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> Graded:
    folder = tmp_path_factory.mktemp("attacks")
    places = [folder / name for name in ("home", "handed in", "out", "tmp")]
    for place in places:
        place.mkdir()
    with (
        tempfile.NamedTemporaryFile("w", prefix="canary-", dir="/tmp") as temporary,
        socket.create_server(("127.0.0.1", 0)) as service,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as by_path,
    ):
        canaries = (*(place / "canary" for place in places), Path(temporary.name))
        for canary in canaries:
            canary.write_text(CANARY)
        lasting = str(secrets.randbelow(10**6) + 10**6)  # seconds that a child sleeps, by which it is known again
        words = {
            PORT: str(service.getsockname()[1]),
            FOLDER: str(folder / "home"),
            TEMPORARY: temporary.name,
            LASTING: lasting,
        }
        words[ABSTRACT] = f"canary-{lasting}"
        abstract.bind(f"\0{words[ABSTRACT]}")
        by_path.bind(str(folder / "home/socket"))
        for server in (service, abstract, by_path):
            server.listen()
            server.setblocking(False)
        for attack in ATTACKS:
            attack.write(folder / "handed in" / attack.name, words)
        give_to_nobody(folder)
        give_to_nobody(Path(temporary.name))
        words = [sys.executable, "-m", "course_lib.cli", "grade", "handed in", "--out", "out", *LIMITS]
        command = as_nobody(words, folder, home=folder / "home")
        environment = {**os.environ, "CANARY_WORD": "CANARY_WORD", "TMPDIR": str(folder / "tmp")}
        before = _shared_files()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
        fresh, callers = (
            _shared_files() - before,
            [str(server) for server in (service, abstract, by_path) if _called(server)],
        )
        found = [json.loads(path.read_text()) for path in (folder / "out/submissions").glob("*.json")]
        results = {result["learner"]: result for result in found}
        yield Graded(folder, command, environment, done, results, canaries, callers, fresh, lasting)


def _shared_files() -> set[Path]:
    """What the grading user owns in the folders that everybody shares."""
    user = os.geteuid() or NOBODY
    return {path for place in SHARED for path in place.iterdir() if path.lstat().st_uid == user}


def _called(server: socket.socket) -> bool:
    try:
        server.accept()
    except BlockingIOError:
        return False
    return True


def said(result: dict) -> str:
    """All that a learner reads of a result, but for the output of the learner's own."""
    lines = [result["problem"], *result["notes"]]
    for verdict in result["verdicts"]:
        targets = [f"{target['goal']}: {target['detail']}" for target in verdict["targets"] if not target["met"]]
        lines += [
            f"{verdict['question']} {verdict['problem']}",
            verdict["mistake"] or "",
            *verdict["hints"],
            *verdict["notes"],
            *targets,
        ]
    return "\n".join(lines)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.family}-{attack.name}")
def test_it_scores_what_it_deserves(attack: Attack, graded):
    result = graded.results[attack.name]
    assert tuple(verdict["question"] for verdict in result["verdicts"] if verdict["right"]) == attack.right, said(
        result
    )
    assert result["points"] == len(attack.right)
    assert re.search(attack.says, said(result)), said(result)
    assert re.search(attack.prints, result["output"], re.DOTALL), result["output"]
    assert "FOUND" not in result["output"], result["output"]
    assert "Traceback" not in said(result) and "\x1b" not in said(result)


HOLDING = """
import mmap, multiprocessing, os, socket, time
MIB = 2**20
def holds(share):
    held = bytearray(int(share * 1024 * MIB))
    held[::4096] = b"x" * len(held[::4096])
    return held
def forks(share):
    for _ in range(int(share * 8)):
        if os.fork() == 0:
            held = holds(1 / 8)
            time.sleep(60)
def page_tables(share):
    held = mmap.mmap(-1, 2**45, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)
    for place in range(int(share * 1024 * MIB) // 4096):
        held[place << 21]
    return held
def sockets(share):
    held = []
    for place in range(int(share * 1024 * MIB) // 2**18 // 1024):
        if os.fork() == 0:
            held = [socket.socketpair() for _ in range(512)]
            for one, other in held:
                for end in (one, other):
                    end.setblocking(False)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
                    try:
                        while end.send(b"x" * 65536):
                            pass
                    except BlockingIOError:
                        pass
            time.sleep(60)
def shared(share):
    held = mmap.mmap(-1, int(share * 1024 * MIB))
    held[::4096] = b"x" * len(held[::4096])
    return held
def shared_zeros(share):
    return mmap.mmap(os.open("/dev/zero", os.O_RDWR), int(share * 1024 * MIB))
def files(share):
    for place in range(int(share * 512)):
        with open(f"/dev/shm/{place}", "wb") as file:
            file.write(bytes(MIB))
def empty_files(share):
    for place in range(int(share * 65536)):
        open(f"/scratch/{place}", "x").close()
def tcp(share):
    server, held, sent = socket.create_server(("127.0.0.1", 0)), [], 0
    while sent < share * 1024 * MIB:
        held.append(socket.create_connection(server.getsockname()))
        held.append(server.accept()[0])
        held[-1].setblocking(False)
        try:
            while True:
                sent += held[-1].send(bytes(MIB))
        except BlockingIOError:
            pass
    return held
"""
KILLED, NO_SPACE = "took more than 1 GiB", "No space left"
# What takes memory or files, and what is said when it takes three times the limit; some is refused whatever its size.
HOLDERS = {
    "holds": "MemoryError|" + KILLED,
    "forks": KILLED,
    "page_tables": KILLED,
    "sockets": KILLED,
    "tcp": KILLED,
    "files": NO_SPACE,
    "empty_files": NO_SPACE,
    "shared": "Operation not permitted",
    "shared_zeros": "No such device",
}


@pytest.fixture(scope="module")
def held(tmp_path_factory) -> dict[str, dict]:
    """Results by holder and share, with 1 GiB of memory, 512 MiB of files and 65,536 of them."""
    folder = tmp_path_factory.mktemp("holders")
    (folder / "in").mkdir()
    for name in HOLDERS:
        for label, share in (("half", 0.5), ("thrice", 3)):
            cell = f"{HOLDING}held = {name}({share})\ntime.sleep(1)\nprint('HELD')"
            Attack(f"{label}-{name}", "limits", (), (honest("q1"), cell)).write(folder / "in" / f"{label}-{name}", {})
    give_to_nobody(folder)
    words = [sys.executable, "-m", "course_lib.cli", "grade", "in", "--out", "out", "--memory-gib", "1"]
    done = subprocess.run(as_nobody(words, folder), cwd=folder, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    found = [json.loads(path.read_text()) for path in (folder / "out/submissions").glob("*.json")]
    return {result["learner"]: result for result in found}


@pytest.mark.parametrize("name", HOLDERS)
def test_half_of_a_limit_is_had_and_three_times_it_is_not(held, name):
    half, thrice = held[f"half-{name}"], held[f"thrice-{name}"]
    assert (half["points"], thrice["points"]) == (1, 1), (said(half), said(thrice))
    assert "HELD" not in thrice["output"] and re.search(HOLDERS[name], said(thrice)), said(thrice)
    assert ("HELD" in half["output"]) == (not name.startswith("shared")), said(half)


def test_there_are_many_and_each_has_one_result(graded):
    assert graded.done.returncode == 0, graded.done.stderr
    assert not [name for name, count in Counter(attack.name for attack in ATTACKS).items() if count > 1]
    assert len([attack for attack in ATTACKS if attack.family not in ("fair", "honest")]) >= 70
    assert graded.results.keys() == {attack.name for attack in ATTACKS}
    assert len(list((graded.folder / "out/feedback").iterdir())) == len(ATTACKS)


def test_the_command_shows_no_traceback_and_nothing_that_a_terminal_acts_on(graded):
    printed = graded.done.stdout + graded.done.stderr
    assert "Traceback" not in printed
    assert not re.search(r"[^\n\x20-\x7e]", printed), re.findall(r"[^\n\x20-\x7e]+", printed)


def test_pages_hold_no_markup_of_the_learners(graded):
    pages = [*(graded.folder / "out/feedback").iterdir(), graded.folder / "out/summary.html"]
    assert not [page.name for page in pages if re.search("<script>alert|<img src=x", page.read_text(encoding="utf-8"))]


def test_no_page_holds_the_secret_or_a_seed(graded):
    secret = (graded.folder / "out/secret").read_text().strip()
    seeds = {str(seed) for result in graded.results.values() for seed in (result["seeds"] or {}).values()}
    for page in (graded.folder / "out/feedback").iterdir():
        words = set(re.findall(r"\w+", page.read_text(encoding="utf-8")))
        assert secret not in words and not seeds & words, page.name


def test_canaries_are_unchanged_and_no_service_was_called(graded):
    assert [path for path in graded.canaries if not path.is_file() or path.read_text() != CANARY] == []
    assert graded.callers == []


def test_nothing_lies_about(graded):
    assert graded.fresh == set()
    assert [path.name for path in (graded.folder / "tmp").iterdir()] == ["canary"]
    assert list(graded.folder.rglob(f"*{LEFT}*")) == []
    assert {path.name for path in (graded.folder / "handed in").iterdir()} == {attack.name for attack in ATTACKS} | {
        "canary"
    }


def test_no_process_is_left(graded):
    processes = _processes()
    left = {number: line for number, (line, _) in processes.items() if graded.lasting in line}
    left |= {
        number: line
        for number, (line, _) in processes.items()
        if "course_lib.staff.grade.sandbox_side" in line and _is_orphan(number, processes)
    }
    assert left == {}


def _processes() -> dict[int, tuple[str, int]]:
    """The command line and the parent of every process."""
    found = {}
    for folder in (path for path in Path("/proc").iterdir() if path.name.isdecimal()):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            found[int(folder.name)] = line, int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
    return found


def _is_orphan(number: int, processes: dict[int, tuple[str, int]]) -> bool:
    """Whether no `course grade` is above it; another call on this machine keeps its own."""
    while number in processes:
        line, number = processes[number]
        if re.search(r"(course_lib\.cli|course) grade ", line):
            return False
    return True


def test_a_second_call_grades_nothing_again_and_leaves_the_same_bytes(graded):
    out = graded.folder / "out"
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    again = subprocess.run(
        graded.command, cwd=graded.folder, env=graded.environment, capture_output=True, text=True, timeout=300
    )
    assert again.returncode == 0, again.stderr
    assert "; all graded already" in again.stdout and "[1/" not in again.stdout
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
