"""What comes out of grading a class: safe to open, kind to learners, the same bytes every time, and its sums add up."""

import base64
import csv
import hashlib
import io
import json
import re
from dataclasses import replace

import pytest
from test_report import Reader

from course_lib.errors import CourseError
from course_lib.exercises.verdict import TargetResult, Verdict
from course_lib.staff import html_page
from course_lib.staff.grade import exports, feedback, results, summary
from course_lib.staff.grade.results import Result

EXERCISE = "02_data_parallelism"
GOALS = (TargetResult("the mean is right", True), TargetResult("no example is lost", False, "2 of 10 are missing"))
RIGHT = Verdict("q1", "Split a batch", True, 1, 1, GOALS[:1])
MISTAKEN = Verdict(
    "q2", "Average", False, 0, 1, GOALS, "swapped", ("You divide by the workers.", "Look at the last line.")
)
UNKNOWN = Verdict("q2", "Average", False, 0, 1, GOALS)
RAISED = Verdict("q2", "Average", False, 0, 1, problem="is not right yet: KeyError: 'x'", notes=("cell 4 raised",))
BLANK = Verdict("q3", "Scale", False, 0, 2, problem="is still blank")
UNCHECKED = Verdict("q3", "Scale", False, 0, 2, problem="was not checked: the kernel died in cell 5")
SCALED = Verdict("q3", "Scale", True, 2, 2)

HOSTILE = "</pre></style><script>alert(1)</script><img src=x onerror=alert(1)>\u202egpj.\u2066\x00\x1b[31m\ud800'\"&"


def result(learner, *verdicts, **more):
    given = {
        "exercise": EXERCISE,
        "file": f"week3.zip: {learner}/02.ipynb",
        "sha256": f"of {learner}",
        "verdicts": verdicts,
    }
    return Result(learner, **{**given, **more})


SHA256_OF_NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
PRIVATE = {"review": ("REVIEW reads os.environ",), "seeds": {"q1": 987654321}, "graded_by": "SECRET-HASH"}
CLASS = [
    result("ana", RIGHT, MISTAKEN, SCALED, **PRIVATE),
    result("bo", RIGHT, UNKNOWN, BLANK, notes=("q3's check cell is gone",), output="epoch 1\nloss 0.3\n"),
    result("chen", RIGHT, RAISED, UNCHECKED, sha256="of bo"),
    result("dee", problem="02.ipynb is not a notebook: it has 0 bytes", **PRIVATE),
    result("eve", replace(RIGHT, right=False, points=0), UNKNOWN, BLANK),
    result("fay", RIGHT, UNKNOWN, SCALED),
    result(
        "gil",
        *(replace(MISTAKEN, question=f"q{number}", right=True, points=1, mistake=None, hints=()) for number in (1, 2)),
    ),
    result("ana", RIGHT, exercise="00_start_here", file="week1.zip: ana/00.ipynb"),
    result("hal", exercise=None, problem="hal.ipynb does not tell which exercise it is"),
]
NASTY = result(
    HOSTILE,
    Verdict(
        "q1",
        HOSTILE,
        False,
        0,
        1,
        (TargetResult(HOSTILE, False, HOSTILE),),
        HOSTILE,
        (HOSTILE, HOSTILE),
        HOSTILE,
        (HOSTILE,),
    ),
    file=HOSTILE,
    notes=(HOSTILE, "x" * 1_000_000, *["many"] * 5_000),
    review=(HOSTILE,),
    output="y" * 5_000_000 + HOSTILE + "THE END",
)


BROKEN = result(HOSTILE, exercise=HOSTILE, problem=HOSTILE, file=HOSTILE, review=(HOSTILE,), sha256=HOSTILE)

PAGES = {
    "two notebooks": feedback.learner_page("ana", [one for one in CLASS if one.learner == "ana"]),
    **{f"feedback {number}": feedback.learner_page(one.learner, [one]) for number, one in enumerate([*CLASS, NASTY])},
    "hostile feedback": feedback.learner_page(HOSTILE, [BROKEN, BROKEN]),
    "hostile summary": summary.as_html(
        summary.figures([NASTY, BROKEN, replace(BROKEN, learner="x"), replace(NASTY, exercise=HOSTILE)])
    ),
    "summary": summary.as_html(summary.figures([*CLASS, NASTY, replace(NASTY, learner="other")])),
    "empty summary": summary.as_html(summary.figures([])),
}
each_page = pytest.mark.parametrize("text", PAGES.values(), ids=PAGES)


def rows(text):
    return list(csv.reader(io.StringIO(text.removeprefix(results.BYTE_ORDER_MARK))))


def written(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


# Pages


@each_page
def test_a_page_shows_strangers_text_as_text(text):
    reader = Reader(text)
    assert {tag for tag, _ in reader.tags} & {"script", "img", "link", "iframe", "object", "form", "base"} == set()
    assert not any(
        name.startswith("on") or name in ("src", "style") for _, attributes in reader.tags for name in attributes
    )
    assert all(
        attributes["href"].startswith(("#e", "feedback/")) for tag, attributes in reader.tags if "href" in attributes
    )
    assert not re.search("[\x00\x1b\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    text.encode("utf-8")


@each_page
def test_a_page_allows_itself_nothing_but_its_own_style(text):
    reader = Reader(text)
    (policy,) = [
        attributes["content"]
        for tag, attributes in reader.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src" not in policy
    (style,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    assert f"style-src 'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in policy
    assert "http:" not in text and "https:" not in text and "url(" not in text


@each_page
def test_a_page_can_be_read_without_seeing_it(text):
    reader = Reader(text)
    tags = [tag for tag, _ in reader.tags]
    assert ("html", {"lang": "en"}) in reader.tags and {"title", "header", "main", "footer"} <= set(tags)
    levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:])), f"a level is left out: {levels}"
    names = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(names) == len(set(names))
    assert all(attributes.get("aria-hidden") == "true" for tag, attributes in reader.tags if tag == "svg")
    assert (
        tags.count("table")
        == tags.count("caption")
        == sum(attributes.get("class") == "wide" for _, attributes in reader.tags)
    )


@pytest.mark.parametrize("colours", re.findall(r":root {([^}]*)}", html_page.STYLE), ids=["light", "dark"])
def test_every_text_colour_has_the_contrast_of_wcag_aa(colours):
    colour = dict(re.findall(r"--(\w+): (#\w{6});", colours))
    for text in ("text", "quiet", "right", "wrong", "blank", "unchecked"):
        for ground in ("page", "card"):
            brighter, darker = sorted((luminance(colour[text]), luminance(colour[ground])), reverse=True)
            assert (brighter + 0.05) / (darker + 0.05) >= 4.5, f"{text} on {ground}"


def luminance(colour):
    """Relative luminance, https://www.w3.org/TR/WCAG21/#dfn-relative-luminance."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_long_texts_are_cut_and_the_end_of_the_output_is_kept():
    text = feedback.learner_page("x", [NASTY])
    assert len(text) < 100_000 and "THE END" in text
    assert text.count("<li>many") < 50 and "more</li>" in text


# Feedback


def test_feedback_says_everything_that_helps(tmp_path):
    files = feedback.write(tmp_path, CLASS)
    assert [file.name for file in files] == [
        f"{name}.html" for name in ("ana", "bo", "chen", "dee", "eve", "fay", "gil", "hal")
    ]
    ana, bo, chen, dee = (Reader(file.read_text(encoding="utf-8")).text for file in files[:4])
    for part in (
        "4 of 5 points in 2 notebooks",
        "00_start_here: 1 of 1 point",
        "Not met yet : no example is lost",
        "2 of 10 are missing",
    ):
        assert part in ana
    assert "You divide by the workers." in ana and "Look at the last line." in ana
    assert "q2: read “Where to look” above" in ana and "Nothing is open here." in ana
    assert "Still blank , 0 of 2 points" in bo and "q3's check cell is gone" in bo and "epoch 1 loss 0.3" in bo
    assert "q2: start with the first target that is not met: no example is lost." in bo
    for part in (
        "What happened: KeyError: 'x'",
        "cell 4 raised",
        "Could not be checked , 0",
        "What happened: the kernel died in cell 5",
    ):
        assert part in chen
    assert "could not be graded: 02.ipynb is not a notebook: it has 0 bytes" in dee and "save, and hand in again" in dee


def test_pages_of_learners_who_are_gone_are_removed(tmp_path):
    feedback.write(tmp_path, CLASS)
    (here,) = feedback.write(tmp_path, CLASS[:1])
    assert list((tmp_path / "feedback").iterdir()) == [here]


def test_feedback_and_gradescope_keep_to_themselves_what_is_for_the_examiner(tmp_path):
    feedback.write(tmp_path, CLASS)
    exports.write(tmp_path, "gradescope", CLASS)
    everything = b"".join(written(tmp_path).values())
    assert not any(secret in everything for secret in (b"REVIEW", b"987654321", b"SECRET-HASH", b"swapped"))


def test_no_two_learners_share_a_file_and_none_leaves_its_folder(tmp_path):
    learners = [
        "ana",
        "Ana",
        "ANA",
        "an\u00e1",
        "\u674e\u96f7",
        " ",
        "../ana",
        "a/../ana",
        "doe (1)",
        "doe (2)",
        HOSTILE,
        "x" * 500,
        "x" * 501,
    ]
    everyone = [result(learner, RIGHT) for learner in learners]
    for files in (feedback.write(tmp_path, everyone), exports.write(tmp_path, "gradescope", everyone)):
        assert len({str(file).lower() for file in files}) == len(learners)
        assert {file.relative_to(tmp_path).parts[0] for file in files} <= {"feedback", "gradescope"}
        assert not any(".." in file.parts for file in files)
    assert (tmp_path / "feedback" / "ana.html").exists()
    (pretender,) = feedback.write(tmp_path, [result(files[1].parts[-3], RIGHT)])
    assert pretender.name != f"{files[1].parts[-3]}.html"


# Summary


def test_the_summarys_figures_add_up():
    found = summary.figures(CLASS)
    assert (found["submissions"], found["learners"], found["problems"]) == (9, 8, 2)
    (start, parallel) = found["exercises"]
    assert (start["exercise"], start["submissions"], start["mean_points"], start["of"]) == ("00_start_here", 1, 1, 1)
    assert (parallel["submissions"], parallel["problems"], parallel["of"]) == (7, 1, 4)
    assert parallel["mean_points"] == pytest.approx((3 + 1 + 1 + 0 + 3 + 2) / 6, abs=1e-3)
    for question, right, wrong, blank, unchecked, unrecognised in (
        ("q1", 5, 1, 0, 0, 1),
        ("q2", 1, 5, 0, 0, 4),
        ("q3", 2, 0, 2, 1, 0),
    ):
        (of,) = [one for one in parallel["questions"] if one["question"] == question]
        assert (of["right"], of["wrong"], of["blank"], of["unchecked"]) == (right, wrong, blank, unchecked)
        assert of["right_share"] == right / (right + wrong + blank + unchecked) and of["unrecognised"] == unrecognised
        assert of["mean_points"] == pytest.approx(of["of"] * of["right_share"], abs=1e-3)
    assert sum(one["mean_points"] for one in parallel["questions"][:2]) + 4 / 6 == pytest.approx(
        parallel["mean_points"], abs=2e-3
    )


def test_the_summary_names_mistakes_gaps_and_what_to_look_at():
    found = summary.figures(CLASS)
    assert found["mistakes"] == [
        {
            "exercise": EXERCISE,
            "question": "q2",
            "mistake": "swapped",
            "count": 1,
            "meaning": "You divide by the workers.",
        }
    ]
    assert found["bank_gaps"] == [{"exercise": EXERCISE, "question": "q2", "unrecognised": 4}]
    assert [one["learner"] for one in found["look_at"]] == ["hal", "ana", "dee"]
    assert found["look_at"][1]["review"] == ["REVIEW reads os.environ"]
    points = {one["learner"]: (one["points"], one["of"], one["problems"]) for one in found["points_by_learner"]}
    assert points.keys() == {one.learner for one in CLASS} and points["bo"] == (1, 4, 0)
    (same,) = found["identical"]
    assert [(one["learner"], one["points"], one["of"]) for one in same["notebooks"]] == [("bo", 1, 4), ("chen", 1, 4)]


def test_the_same_bytes_of_one_learner_or_of_nothing_are_not_reported():
    twice = [result("ana", RIGHT, file="1"), result("ana", RIGHT, file="2")]
    unread = [
        result(f"{name}{sha256}", sha256=sha256, problem="is too large")
        for name in "ab"
        for sha256 in ("", SHA256_OF_NOTHING)
    ]
    assert summary.figures([*twice, *unread])["identical"] == []


def test_the_page_shows_the_summarys_figures(tmp_path):
    summary.write(tmp_path, CLASS)
    found = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert found == json.loads(json.dumps(summary.figures(CLASS)))
    text = Reader((tmp_path / "summary.html").read_text(encoding="utf-8")).text
    for part in (
        "9 submissions of 8 learners",
        "2 could not be graded",
        "6 of 7 submissions graded; on average 1.67 of 4 points",
    ):
        assert part in text
    assert "q2: Average 1 17% 5 0 0 0.17 of 1" in text and "REVIEW reads os.environ" in text


def test_a_bar_is_as_long_as_its_figures(tmp_path):
    bars = re.findall("<svg.*?</svg>", summary.as_html(summary.figures(CLASS)))
    (q2,) = [bar for bar in bars if 'class="wrong" x="16.67" y="0" width="83.33"' in bar]
    for bar in bars:
        starts, widths = (
            [float(number) for number in re.findall(rf'\b{name}="([\d.]+)"', bar)] for name in ("x", "width")
        )
        assert sum(widths) == pytest.approx(100, abs=0.05)
        assert starts == pytest.approx([sum(widths[:count]) for count in range(4)], abs=0.05)


# Tables


def test_the_sheet_has_a_row_per_submission_and_opens_right_in_excel(tmp_path):
    results.write_csv(tmp_path, [*CLASS, result("zo\u00eb", RIGHT)])
    raw = (tmp_path / "results.csv").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf") and raw.count(b"\r\n") == 11
    first, start, parallel = rows(raw.decode("utf-8"))[:3]
    assert first == [
        "learner",
        "exercise",
        "points",
        "of",
        "q1",
        "q2",
        "q3",
        "q4",
        "q5",
        "q6",
        "mistakes",
        "review",
        "problem",
        "file",
    ]
    assert start[:6] == ["ana", "00_start_here", "1", "1", "1", ""]
    assert parallel[:10] == ["ana", EXERCISE, "3", "4", "1", "0", "2", "", "", ""]
    assert parallel[10:] == ["q2: swapped", "1", "", "week3.zip: ana/02.ipynb"]
    assert rows(raw.decode("utf-8"))[-1][0] == "zo\u00eb"


@pytest.mark.parametrize(
    "start", ["=", "+", "-", "@", "\t=", "\r=", "\n=", " =", "\x00=", "\u202e=", "\uff1d", "x;=", "x; @"]
)
def test_no_cell_is_a_formula(tmp_path, start):
    bad = result(start + 'HYPERLINK("http://x")', problem=start + "1", file=start + "2,\r\n3")
    results.write_csv(tmp_path, [bad])
    exports.write(tmp_path, "canvas", [bad])
    exports.write(tmp_path, "moodle", [bad])
    for text in (text.decode("utf-8") for text in written(tmp_path).values()):
        cells = [part.strip() for row in rows(text) for cell in row for part in cell.split(";")]
        assert not [cell for cell in cells if re.match("[=+@\t\r\uff1d-].", cell)]
        assert {len(row) for row in rows(text)} == {len(rows(text)[0])}


def test_canvas_finds_students_by_id_and_exercises_by_name(tmp_path):
    learners = ("x Points Possible (77)", "fay@uni.edu", "-jo", "Zo\u00eb M")
    jane = replace(CLASS[0], learner="doejane (12345)")
    (file,) = exports.write(tmp_path, "canvas", [jane, CLASS[3], *(result(learner, SCALED) for learner in learners)])
    assert not file.read_bytes().startswith(b"\xef\xbb\xbf")
    assert rows(file.read_text(encoding="utf-8")) == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", EXERCISE],
        ["Points Possible", "", "", "", "", "4"],
        ["'-jo", "", "", "", "", "2"],
        ["Zo\u00eb M", "", "", "", "", "2"],
        ["dee", "", "", "dee", "", ""],
        ["doejane", "12345", "", "", "", "3"],
        ["fay@uni.edu", "", "", "fay@uni.edu", "", "2"],
        ["x Points-Possible", "77", "", "", "", "2"],
    ]


def test_moodle_gets_participants_by_assignment_and_the_others_by_identifier(tmp_path):
    jane = replace(CLASS[0], learner="Jane Doe (12345)")
    files = exports.write(tmp_path, "moodle", [jane, CLASS[1], CLASS[3], CLASS[7], result("  ", RIGHT)])
    assert [file.name for file in files] == [f"worksheet_{EXERCISE}.csv", "gradebook.csv"]
    assert rows(files[0].read_text(encoding="utf-8")) == [
        ["Identifier", "Full name", "Grade", "Maximum grade", "Last modified (grade)"],
        ["Participant 12345", "Jane Doe", "3", "4", ""],
    ]
    assert rows(files[1].read_text(encoding="utf-8")) == [
        ["Identifier", "00_start_here", EXERCISE],
        ["ana", "1", "-"],
        ["bo", "-", "1"],
        ["dee", "-", "-"],
    ]


def test_gradescope_gets_what_its_autograder_would_write(tmp_path):
    files = exports.write(tmp_path, "gradescope", [*CLASS, NASTY])
    assert len(files) == len(CLASS) + 1 and {file.name for file in files} == {"results.json"}
    for file in files:
        given = json.loads(file.read_text(encoding="utf-8"))
        assert given["visibility"] == "visible" and given["stdout_visibility"] == "hidden"
        assert given["output_format"] == given["test_output_format"] == given["test_name_format"] == "text"
        assert given["score"] == sum(test["score"] for test in given["tests"])
        for test in given["tests"]:
            assert test["status"] == ("passed" if test["score"] == test["max_score"] else "failed")
            assert isinstance(test["score"], float) and isinstance(test["max_score"], float)
            assert all(isinstance(test[name], str) for name in ("name", "output", "number"))
    ana = json.loads((tmp_path / "gradescope/ana" / EXERCISE / "results.json").read_text(encoding="utf-8"))
    assert [test["score"] for test in ana["tests"]] == [1, 0, 2] and "You divide by the workers." in ana["tests"][1][
        "output"
    ]
    dee = json.loads((tmp_path / "gradescope/dee" / EXERCISE / "results.json").read_text(encoding="utf-8"))
    assert dee["score"] == 0 and dee["tests"] == [] and "could not be graded" in dee["output"]


def test_of_several_submissions_the_last_counts_in_an_export(tmp_path):
    (file,) = exports.write(tmp_path, "canvas", [result("ana", SCALED), result("ana", RIGHT)])
    assert rows(file.read_text(encoding="utf-8"))[2][-1] == "1"


def test_marks_of_learners_who_are_gone_are_removed_from_an_export(tmp_path):
    jane = replace(CLASS[0], learner="Jane Doe (12345)")
    for form in ("moodle", "gradescope"):
        exports.write(tmp_path, form, [jane, CLASS[1]])
        (tmp_path / form / "mine.csv").touch()
        files = exports.write(tmp_path, form, [CLASS[1]])
        assert set(written(tmp_path / form)) == {
            "mine.csv",
            *(str(file.relative_to(tmp_path / form)) for file in files),
        }


def test_another_form_is_refused_in_one_line(tmp_path):
    with pytest.raises(CourseError, match="'sakai'; the forms are canvas, moodle, gradescope"):
        exports.write(tmp_path, "sakai", CLASS)


# All of it


def everything(folder, graded):
    folder.mkdir()
    for write in (feedback.write, results.write_csv, summary.write):
        write(folder, graded)
    for form in exports.FORMS:
        exports.write(folder, form, graded)
    return written(folder)


def test_the_same_results_in_any_order_give_the_same_bytes_and_no_place_of_this_machine(tmp_path):
    one = everything(tmp_path / "one", [*CLASS, NASTY])
    other = everything(tmp_path / "other", [NASTY, *reversed(CLASS)])
    assert one == other
    assert not any(str(tmp_path).encode() in text for text in one.values())


def test_nobody_handed_in(tmp_path):
    files = everything(tmp_path / "none", [])
    assert sorted(files) == ["canvas/canvas.csv", "results.csv", "summary.html", "summary.json"]
    assert b"0 submissions of 0 learners" in files["summary.html"]
