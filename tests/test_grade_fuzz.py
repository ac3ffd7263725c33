"""Whatever is handed in, and whatever a sandbox answers, each learner gets a result and the class goes on.

Random records, names, notebooks and archives, from seeds: each a class of about four submissions. FUZZ_CASES=2500 tries
10,000 of them, as .ci/run does; a failure names its seed, and `FUZZ_FIRST=SEED FUZZ_CASES=1` repeats it.
"""

import csv
import io
import json
import os
import random
import unicodedata
import zipfile
from functools import partial
from pathlib import Path

from test_grade_marking import LIMITS, Q1, QUESTIONS, SECRET, right, submission

from course_lib.errors import CourseError
from course_lib.staff.grade import exports, feedback, grade_class, grade_one, results, summary
from course_lib.staff.grade.sandbox import SandboxFailed, SandboxRun, _object
from course_lib.staff.grade.sandbox_side.channel import KEY_BYTES, Unsealed, sealed
from course_lib.staff.grade.submissions import find

CASES, FIRST = (int(os.environ.get(f"FUZZ_{name}", default)) for name, default in (("CASES", "200"), ("FIRST", "0")))
GOOD = "aa_good"
KEY = b"K" * KEY_BYTES
FIELDS = (
    "question seed answers changed stopped threads at error begins end refused limit last output exit memory failed "
    "cells cell_type source metadata tags nbformat worksheets input"
).split()
PLAIN = (None, True, 0, -1, 10**30, 1.5, float("nan"), "", "q1", "q9", "code", "\ud800", "x" * 5_000, "{", "8J+YgA==")
PIECES = (
    "ana|ana|-copy (1)| copy 2|(1)|_|-| |;|=1+1|'|\"|<b>|%matplotlib inline|!ls\n|?x\n|\n|\t|/|\\|..|.|\0|\x1b[2J|"
    "é|e\u0301|\u202e|\u200b|\u3164|\U0001f600|00_start_here|02|.ipynb|.zip|__MACOSX|_12_assignsubmission_file_|"
    '_LATE_12_34_|-2|submission_1|9|0|{|}|[|]|(|)|check("q1")|Exercise("00_start_here")|def |shard_sizes|import sys|'
    "f_globals|:|,|\u2028|a.b.|~|COM1"
).split("|")


def text(rng: random.Random, most: int = 12) -> str:
    """Any text; half of them repeat a few pieces, as what costs more than linear time does."""
    pieces = rng.choices(PIECES, k=rng.randrange(1, most))
    return "".join(pieces) * (rng.randrange(1, 40) if rng.random() < 0.5 else 1)


def odd(rng: random.Random, depth: int = 3) -> object:
    """A value as JSON may bring it."""
    kind = rng.random()
    if depth == 0 or kind < 0.5:
        return rng.choice([*PLAIN, text(rng), right(1)])
    if kind < 0.75:
        return [odd(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(FIELDS): odd(rng, depth - 1) for _ in range(rng.randrange(5))}


def mutated(rng: random.Random, content: bytes) -> bytes:
    """The bytes with a few of them changed, cut out, doubled or added."""
    for _ in range(rng.randrange(4)):
        at, end = sorted(rng.choices(range(len(content) + 1), k=2))
        piece = rng.choice([b"", content[at:end] * 2, rng.randbytes(4), text(rng).encode("utf-8", "ignore")])
        content = content[:at] + piece + content[rng.choice([at, end]) :]
    return content


def answered(rng: random.Random, job: dict) -> SandboxRun:
    """What comes back from a job, as the lasting process and the grader read it, line by line; or a failure."""
    if rng.random() < 0.05:
        raise SandboxFailed("it fell silent")
    seeds, records = {one["name"]: one["seed"] for one in job["questions"]}, []
    for _ in range(rng.randrange(6)):
        record = {name: odd(rng, depth=rng.randrange(3)) for name in rng.sample(FIELDS[:11], rng.randrange(1, 6))}
        if rng.random() < 0.5:  # else few would get as far as a judge
            name, seed = rng.choice(list(seeds.items()))
            record |= {"question": name, "seed": seed, "answers": rng.choice([right(seed), text(rng), odd(rng)])}
        records.append(json.dumps(record).encode())
    lines = [sealed(KEY, place, mutated(rng, one) if rng.random() < 0.3 else one) for place, one in enumerate(records)]
    stream = b"".join(lines if rng.random() < 0.8 else [mutated(rng, b"".join(lines))])
    reader, size = Unsealed(KEY), rng.choice([1 + len(stream), 100])
    found = [one for at in range(0, len(stream), size) for one in reader.take(stream[at : at + size])]
    ending = {name: odd(rng, depth=0) for name in rng.sample(FIELDS[11:17], rng.randrange(7))}
    read = [_object(record) for record in found]
    return SandboxRun([one for one in read if one is not None], _object(json.dumps(ending).encode()) or {})


def notebook(rng: random.Random) -> bytes:
    """A notebook with odd cells and fields; one in four is no JSON any more."""
    whole = json.loads(submission(Q1, *(text(rng, 40) for _ in range(rng.randrange(6)))).content)
    for _ in range(rng.randrange(3)):
        place = rng.choice([whole, *(cell for cell in whole["cells"] if isinstance(cell, dict))])
        place[rng.choice(FIELDS[17:])] = odd(rng)
        if not isinstance(whole["cells"], list):
            break
    content = json.dumps(whole).encode()
    return mutated(rng, content) if rng.random() < 0.25 else content


def archive(rng: random.Random, depth: int = 0) -> bytes:
    """A zip of notebooks and zips under odd names."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as made:
        for _ in range(rng.randrange(1, 5)):
            name = (text(rng) + rng.choice([".ipynb", "/x.ipynb", "/", ".zip", ""])).replace("\0", "0")[:60_000]
            inner = archive(rng, depth + 1) if name.endswith(".zip") and depth < 2 else notebook(rng)
            made.writestr(zipfile.ZipInfo(name), inner)
    return mutated(rng, file.getvalue()) if depth and rng.random() < 0.5 else file.getvalue()


def hand_in(rng: random.Random, folder: Path) -> list[Path]:
    """A class's folder with one good notebook in it, odd names and notebooks, and an odd zip."""
    (folder / GOOD).mkdir(parents=True)
    (folder / GOOD / "00_start_here.ipynb").write_bytes(submission(Q1).content)
    for _ in range(rng.randrange(1, 4)):
        name = text(rng).replace("/", "").replace("\0", "").encode("utf-8", "ignore")[:200].decode("utf-8", "ignore")
        place = folder / (name + rng.choice([".ipynb", ""]))
        if place.exists() or name in ("", ".", ".."):
            continue
        if place.suffix != ".ipynb":
            place.mkdir()
            place = place / "00_start_here.ipynb"
        if rng.random() < 0.9:  # else the folder stays empty
            place.write_bytes(notebook(rng))
    alone = folder.with_name(f"{folder.name}.zip")
    alone.write_bytes(archive(rng) if rng.random() < 0.5 else mutated(rng, archive(rng)))
    return [folder, alone]


def test_each_learner_has_a_result_and_a_row(tmp_path):
    for seed in range(FIRST, FIRST + CASES):
        rng, folder = random.Random(seed), tmp_path / f"case{seed}"
        try:
            found = find(hand_in(rng, folder))
        except CourseError as error:
            assert "\n" not in str(error), seed
            found = find([folder])  # the archive was the mistake
        graded = []
        for one in found:
            job = partial(answered, rng)
            runs = partial(grade_one.run_submission, one, job, SECRET, LIMITS)
            graded.append(grade_class._result(one, runs, SECRET, LIMITS, "by"))
            assert "cannot be judged" not in graded[-1].problem, (seed, graded[-1].problem)
            results.write(folder / "out", one.name, graded[-1])
            assert results.read(folder / "out", one.name) == graded[-1], seed
        results.write_csv(folder, graded)
        feedback.write(folder, graded)
        summary.write(folder, graded)
        exports.write(folder, rng.choice(list(exports.FORMS)), graded)
        rows = list(csv.reader((folder / "results.csv").read_text(encoding="utf-8-sig").splitlines()))
        assert len(rows) == len(found) + 1 and any(row[0] == GOOD for row in rows), seed
        good = next(result for result in graded if result.learner == GOOD)
        assert good.problem.startswith("it could not be graded: its sandbox") or len(good.verdicts) == len(QUESTIONS)
        learners = {unicodedata.normalize("NFC", one.learner) for one in found}
        assert len({result.learner for result in graded}) == len(learners), seed
