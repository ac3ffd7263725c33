"""Certificates: what an instructor accepts, what is refused in one line, and what a page says of itself."""

import dataclasses
import hashlib
import html
import json
import os
import re
import shutil
import stat
import string
import subprocess
import sys
from pathlib import Path

import markupsafe
import pytest
from installed import need, needs_sandbox
from unprivileged import as_nobody, give_to_nobody

from course_lib import cli
from course_lib.exercises import journal, judges
from course_lib.exercises.verdict import Verdict
from course_lib.staff.certificate import certificate_page, keys, record, rerun
from course_lib.staff.certificate.record import Record, Refused
from course_lib.staff.grade.results import Result

need("cryptography")

ROOT = Path(__file__).parents[1]
HOSTILE = '</pre><script>alert(1)</script><pre id="record" tabindex="0"> "&\'<!--'
TRUE_NAME = "Ada Lovelace"


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    code = cli.main(list(map(str, arguments)))
    said = capsys.readouterr()
    return code, said.out, said.err


def finish(folder: Path, *exercises: str) -> Path:
    """A learner's folder: these exercises' solutions, and a progress file in which all is right."""
    folder.mkdir(parents=True, exist_ok=True)
    for exercise in exercises:
        shutil.copy(ROOT / "solutions" / f"{exercise}.ipynb", folder)
        for question in judges.questions(exercise):
            journal.record(folder / journal.FILE, exercise, Verdict(question.name, "t", True, 1, 1), seed=0)
    return folder


@pytest.fixture(scope="module")
def learner(tmp_path_factory) -> Path:
    return finish(tmp_path_factory.mktemp("learner"), *judges.MODULES)


@pytest.fixture
def claim(learner, tmp_path, capsys) -> Path:
    out = tmp_path / "ada.html"
    assert call(capsys, "certificate", "--name", TRUE_NAME, "--folder", learner, "--out", out)[0] == 0
    return out


@pytest.fixture
def key(tmp_path, capsys) -> Path:
    assert call(capsys, "verify", "--new-key", tmp_path / "class.key")[0] == 0
    return tmp_path / "class.key"


def pretend_rerun(monkeypatch, wrong: str | None = None, review: tuple[str, ...] = ()) -> None:
    """The sandbox finds every answer right but those of one exercise."""

    def results(made, jobs, enclosed):
        rerun.require_whole(made)
        for exercise in judges.MODULES:
            right = exercise != wrong
            verdicts = tuple(
                Verdict(one.name, one.title, right, one.points * right, one.points)
                for one in judges.questions(exercise)
            )
            yield Result(made.name, exercise, f"{exercise}.ipynb", "", verdicts=verdicts, review=review)

    monkeypatch.setattr(rerun, "results", results)


@pytest.fixture
def signed(claim, key, tmp_path, capsys, monkeypatch) -> Path:
    pretend_rerun(monkeypatch)
    code, out, _ = call(capsys, "verify", claim, "--key", key, "--sign", tmp_path / "signed.html")
    assert code == 0 and f"accepted: {TRUE_NAME}, 69 of 69 points in 13 exercises" in out
    return tmp_path / "signed.html"


def changed(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def refusal(capsys, path: Path, *more: object) -> str:
    code, out, err = call(capsys, "verify", path, *more)
    assert code == 1 and err.startswith("course verify: refused: ") and err.count("\n") == 1, (code, out, err)
    return err


# The learner's side.


def test_a_package_that_is_missing_is_named_in_one_line(learner, tmp_path):
    code = "import sys; sys.modules['jinja2'] = None; from course_lib import cli; sys.exit(cli.main())"
    command = [sys.executable, "-c", code, "certificate", "--name", TRUE_NAME, "--folder", learner]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not list(tmp_path.iterdir())
    assert "pages need the jinja2 package: `pip install jinja2`" in done.stderr


def test_what_is_open_is_one_line_and_exit_code_1(tmp_path, capsys):
    folder, out = finish(tmp_path / "e", *list(judges.MODULES)[1:]), tmp_path / "c.html"
    code, said, err = call(capsys, "certificate", "--name", TRUE_NAME, "--folder", folder, "--out", out)
    assert (code, said) == (1, "") and not out.exists()
    assert err == "course certificate: 65 of 69 points; open: 00_start_here (q1, q2, q3, q4)\n"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "  ",
        "x" * 101,
        "Ada\x1b[31m",
        "\u202eadA",
        "\ud800",
        "\u2800",
        "\u3164",
        "A\u3164",
        "\u0301",
        "...",
        "\ufe0f",
    ],
)
def test_a_name_is_one_printable_line(learner, tmp_path, capsys, name):
    code, _, err = call(capsys, "certificate", "--name", name, "--folder", learner, "--out", tmp_path / "c.html")
    assert code == 2 and "--name takes 1 to 100 characters" in err and not (tmp_path / "c.html").exists()


def test_a_missing_notebook_is_one_line(tmp_path, capsys):
    folder = finish(tmp_path / "e", *judges.MODULES)
    (folder / "05_tpu.ipynb").unlink()
    code, _, err = call(capsys, "certificate", "--name", TRUE_NAME, "--folder", folder, "--out", tmp_path / "c.html")
    assert code == 2 and "there is no file" in err and err.count("\n") == 1


def test_a_claim_says_that_it_is_one_and_names_all(claim):
    text = claim.read_text()
    assert "learner's own claim. Nobody has confirmed it" in text and all(
        exercise in text for exercise in judges.MODULES
    )
    assert f"<h1>{TRUE_NAME}</h1>" in text and "69 of 69" in text
    made = certificate_page.opened(claim.read_bytes())
    assert made.key is None and made.record.digest in text
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", one.right_since) for one in made.record.exercises)


def test_a_page_is_self_contained_light_dark_and_printable(claim, signed):
    for path in (claim, signed):
        text = path.read_text()
        assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text and "@media print" in text
        assert not re.search(r"""(?:src|href)\s*=|@import|url\(|<script""", text)


def test_the_certificate_holds_every_code_cell_and_no_output(claim, learner):
    answers = record.unpack(certificate_page.opened(claim.read_bytes()).record.answers)
    for exercise in judges.MODULES:
        cells = json.loads((learner / f"{exercise}.ipynb").read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        assert [cell["source"] for cell in answers[exercise]] == code


@pytest.mark.parametrize("name", [HOSTILE[:100], "<b>", "Zoë O'Neil & 王芳"])
def test_html_in_a_name_is_text(learner, tmp_path, capsys, monkeypatch, key, name):
    out, made = tmp_path / "c.html", tmp_path / "signed.html"
    assert call(capsys, "certificate", "--name", name, "--folder", learner, "--out", out)[0] == 0
    pretend_rerun(monkeypatch)
    assert call(capsys, "verify", out, "--key", key, "--sign", made)[0] == 0
    assert call(capsys, "verify", made, "--key", key)[0] == 0
    for path in (out, made):
        assert "<script" not in path.read_text() and "<b>" not in path.read_text()
        assert f"<h1>{markupsafe.escape(name)}</h1>" in path.read_text()
        assert certificate_page.opened(path.read_bytes()).record.name == name


# Keys.


def test_a_key_is_its_owners_alone_and_is_never_overwritten(key, capsys):
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()
    code, _, err = call(capsys, "verify", "--new-key", key)
    assert code == 2 and "File exists" in err and key.read_bytes() == before


def test_two_keys_differ_and_none_ships_with_the_course(key, tmp_path, capsys):
    call(capsys, "verify", "--new-key", tmp_path / "other.key")
    assert (tmp_path / "other.key").read_bytes() != key.read_bytes()
    tracked = subprocess.run(
        ["git", "grep", "-lE", "BEGIN (PRIVATE|PUBLIC) " + "KEY"], cwd=ROOT, capture_output=True, text=True
    )
    assert tracked.stdout == ""


@pytest.mark.parametrize("content, says", [(None, "cannot be read"), ("x", "is no key of a class")])
def test_what_is_no_key_is_one_line(claim, tmp_path, capsys, content, says):
    if content:
        (tmp_path / "k").write_text(content)
    code, _, err = call(capsys, "verify", claim, "--key", tmp_path / "k", "--sign", tmp_path / "s.html")
    assert code == 2 and says in err and err.count("\n") == 1


def test_the_public_half_signs_nothing(claim, key, tmp_path, capsys):
    code, _, err = call(capsys, "verify", claim, "--key", f"{key}.pub", "--sign", tmp_path / "s.html")
    assert code == 2 and "the public half of a key, which signs nothing" in err


def test_to_sign_needs_a_key_and_to_check_a_signature_too(claim, signed, tmp_path, capsys):
    code, _, err = call(capsys, "verify", claim, "--sign", tmp_path / "s.html")
    assert code == 2 and "--sign needs --key" in err
    code, _, err = call(capsys, "verify", signed)
    assert code == 2 and "name that key's file, or its public half, with --key" in err


# The instructor's side: a signed page.


def test_a_signed_page_is_accepted_with_either_half(signed, key, capsys):
    for half in (key, f"{key}.pub"):
        code, out, err = call(capsys, "verify", signed, "--key", half)
        assert (code, err) == (0, "") and out.startswith(f"accepted: {TRUE_NAME}, 69 of 69 points")


def test_a_signed_page_holds_no_answers(signed, claim):
    assert certificate_page.opened(signed.read_bytes()).record.answers == ""
    assert (
        certificate_page.opened(signed.read_bytes()).record.digest
        == certificate_page.opened(claim.read_bytes()).record.digest
    )
    assert "does not show who wrote the answers" in html.unescape(signed.read_text())


CHANGES = {
    "name": ("Ada Lovelace", "Bob Lovelace"),
    "heading": (f"<h1>{TRUE_NAME}", "<h1>Bob Lovelace"),
    "points": ("4 of 4", "5 of 5"),
    "recorded points": ("&#34;points&#34;:4", "&#34;points&#34;:5"),
    "digest": ("&#34;digest&#34;:&#34;", "&#34;digest&#34;:&#34;0"),
    "meaning": ("What this page proves", "What this page says"),
    "one blank": ("</main>", "</main> "),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_page_is_refused(signed, key, capsys, what):
    refusal(capsys, changed(signed, *CHANGES[what]), "--key", key)


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_claim_is_refused(claim, capsys, what):
    assert "changed after it was made" in refusal(capsys, changed(claim, *CHANGES[what]))


def test_a_page_that_only_says_it_is_signed_is_refused(claim, key, capsys):
    """A learner who writes the page of a confirmed certificate, and a signature of their own making."""
    made = dataclasses.replace(certificate_page.opened(claim.read_bytes()).record, answers="")
    id_of = keys.id_of(keys.read_public(key))
    body = certificate_page.confirmed_body(made, id_of, "2026-01-01")
    for signature in ("AAAA", "A" * 86 + "==", "===="):
        claim.write_bytes(certificate_page.signed_page(body, id_of, signature))
        assert "changed after it was signed, or this key never signed it" in refusal(capsys, claim, "--key", key)


def test_another_classs_key_is_refused(signed, tmp_path, capsys):
    call(capsys, "verify", "--new-key", tmp_path / "other.key")
    assert "signed with another class's key" in refusal(capsys, signed, "--key", tmp_path / "other.key")
    # and also where the page is made to name that key
    mine, other = (
        re.search(r"<!-- course signature (\w+) ", signed.read_text())[1],
        keys.id_of(keys.read_public(tmp_path / "other.key")),
    )
    assert "was changed" in refusal(capsys, changed(signed, mine, other), "--key", tmp_path / "other.key")


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9, -2, -1])
def test_a_cut_page_is_refused(signed, claim, key, capsys, part):
    for path in (signed, claim):
        content = path.read_bytes()
        path.write_bytes(content[: int(part * len(content)) if 0 <= part < 1 else part])
        refusal(capsys, path, "--key", key)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"<html></html>\n",
        b"\xff" * 99,
        b"{}",
        b"x" * 5_000_001,
        b'<pre id="record" tabindex="0">{}</pre>\n',
    ],
)
def test_what_is_no_certificate_is_refused(tmp_path, capsys, content):
    (tmp_path / "x.html").write_bytes(content)
    refusal(capsys, tmp_path / "x.html")


def test_what_nobody_signed_is_refused_at_once_where_a_signature_is_asked_for(claim, key, capsys, monkeypatch):
    """A claim whose visible page is a signed one's is a claim, and nothing of it runs."""
    monkeypatch.setattr(rerun, "results", lambda *_: pytest.fail("the answers ran"))
    body = certificate_page.confirmed_body(certificate_page.opened(claim.read_bytes()).record, "a" * 16, "2026-01-01")
    looks_signed = body + f"<!-- course claim sha256 {hashlib.sha256(body).hexdigest()} -->\n".encode()
    for content in (claim.read_bytes(), looks_signed):
        claim.write_bytes(content)
        assert "nobody has signed this page" in refusal(capsys, claim, "--key", f"{key}.pub")


def test_nothing_is_written_over(claim, key, tmp_path, capsys, monkeypatch):
    pretend_rerun(monkeypatch)
    other = tmp_path / "other"
    other.write_text("mine")
    for there in (key, Path(f"{key}.pub"), claim, other):
        before = there.read_bytes()
        code, _, err = call(capsys, "verify", claim, "--key", key, "--sign", there)
        assert code == 2 and "is there already, and --sign overwrites nothing" in err and there.read_bytes() == before


def test_every_byte_of_the_seal_counts(signed, key, capsys):
    """Also the bits that the last letter of a base64 text has to spare."""
    content, letters = signed.read_bytes(), string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    (proof,) = re.findall(rb"signature \w+ (\S+)==", content)
    for spare in range(1, 16):
        last = letters[letters.index(chr(proof[-1])) ^ spare]
        signed.write_bytes(content.replace(proof, proof[:-1] + last.encode()))
        refusal(capsys, signed, "--key", key)


@pytest.mark.parametrize(
    "day", ["2026-03-01, summa cum laude", "", "1.3.2026", "20260301", "2026-13-01", "2999-01-01", "unknown \ud800"]
)
def test_a_day_is_a_date_that_has_been(claim, capsys, day):
    made = certificate_page.opened(claim.read_bytes()).record
    since = tuple(dataclasses.replace(line, right_since=day) for line in made.exercises)
    for false in (dataclasses.replace(made, made_on=day), dataclasses.replace(made, exercises=since)):
        body = b'<pre id="record" tabindex="0">%b</pre>\n' % html.escape(false.as_json()).encode()
        claim.write_bytes(body + f"<!-- course claim sha256 {hashlib.sha256(body).hexdigest()} -->\n".encode())
        assert "its record cannot be read" in refusal(capsys, claim)


def test_what_is_no_ordinary_file_is_one_line(signed, key, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        for arguments in ((odd, "--key", key), (signed, "--key", odd)):
            code, _, err = call(capsys, "verify", *arguments)
            assert code == 2 and "cannot be read" in err and err.count("\n") == 1


def resealed(made: Record) -> bytes:
    """What a learner who reads this library can always write: digests say nothing about who made them."""
    return certificate_page.claim_page(made)


def test_a_file_that_is_not_there_is_a_mistake_in_the_call(tmp_path, capsys):
    code, _, err = call(capsys, "verify", tmp_path / "none.html")
    assert code == 2 and "cannot be read" in err


# The instructor's side: a claim, resealed after a change, as any learner can.


def test_digests_that_were_made_to_fit_save_no_false_claim(claim, capsys):
    made = certificate_page.opened(claim.read_bytes()).record
    first, *others = made.exercises
    answers = record.unpack(made.answers)
    swapped = record.pack({**answers, first.exercise: []})
    bomb = record.pack({"x": [{"source": " " * 2 * record.ANSWERS_BYTES, "tags": []}]})
    cases = {
        "claims 3 of 4 points": dataclasses.replace(made, exercises=(dataclasses.replace(first, points=3), *others)),
        "claims 9 of 9 points": dataclasses.replace(
            made, exercises=(dataclasses.replace(first, points=9, of=9), *others)
        ),
        "is not about this course's 13 exercises": dataclasses.replace(made, exercises=tuple(others)),
        "are not those that the certificate names": dataclasses.replace(made, answers=swapped),
        "its answers cannot be read": dataclasses.replace(made, answers=bomb),
        "its record cannot be read": dataclasses.replace(made, name="Ada\nLovelace"),
    }
    for says, false in cases.items():
        claim.write_bytes(resealed(false))
        if os.geteuid() == 0:
            with pytest.raises(Refused, match=says):
                rerun.require_whole(certificate_page.opened(claim.read_bytes()).record)
        else:
            assert says in refusal(capsys, claim)


def test_a_wrong_answer_is_refused_and_nothing_is_signed(claim, key, tmp_path, capsys, monkeypatch):
    pretend_rerun(monkeypatch, wrong="07_tensor_parallelism_and_sharding")
    said = refusal(capsys, claim, "--key", key, "--sign", tmp_path / "s.html")
    assert (
        "07_tensor_parallelism_and_sharding, run again: q1 is not right yet" in said
        and not (tmp_path / "s.html").exists()
    )


def test_what_an_examiner_should_look_at_is_told(claim, capsys, monkeypatch):
    pretend_rerun(monkeypatch, review=("q1, q2: the code is the published solution's",))
    code, out, _ = call(capsys, "verify", claim)
    assert code == 0 and "look at 00_start_here: q1, q2: the code is the published solution's\n" in out


WHOLE = "import sys; from course_lib.exercises import judges; "
WHOLE += "[judges.MODULES.pop(name) for name in [*judges.MODULES][1:]]; "
WHOLE += "from course_lib import cli; sys.exit(cli.main())"


@needs_sandbox
@pytest.mark.slow
def test_real_answers_run_again_are_accepted_and_signed_and_wrong_ones_are_not(tmp_path):
    """A course of one exercise, from the learner's folder to the signed page, as an ordinary user."""
    need("tensorflow")
    first = next(iter(judges.MODULES))
    finish(tmp_path / "right", first)
    finish(tmp_path / "wrong", first)
    changed(
        tmp_path / "wrong" / f"{first}.ipynb", "divmod(global_batch, replicas)", "divmod(global_batch + 1, replicas)"
    )
    give_to_nobody(tmp_path)

    def course(*arguments: str) -> subprocess.CompletedProcess:
        command = as_nobody([sys.executable, "-c", WHOLE, *arguments], tmp_path, ROOT)
        return subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    assert course("verify", "--new-key", "class.key").returncode == 0
    codes, said = {}, {}
    for folder in ("right", "wrong"):
        assert course("certificate", "--name", TRUE_NAME, "--folder", folder, "--out", f"{folder}.html").returncode == 0
        done = course("verify", f"{folder}.html", "--key", "class.key", "--sign", f"{folder}-signed.html")
        codes[folder], said[folder] = done.returncode, done.stdout + done.stderr
    assert codes == {"right": 0, "wrong": 1}, said
    assert (
        "00_start_here, run again: q1 is not right yet" in said["wrong"]
        and not (tmp_path / "wrong-signed.html").exists()
    )
    assert course("verify", "right-signed.html", "--key", "class.key.pub").stdout.startswith("accepted: ")
