"""From a notebook to jobs for a sandbox, and from what comes back to a result: with records made up."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from course_lib.errors import CourseError
from course_lib.exercises import judges
from course_lib.exercises.notebook_cells import question_tags, read_notebook
from course_lib.exercises.probes import ex00
from course_lib.staff.grade import grade_class, grade_one
from course_lib.staff.grade.results import state
from course_lib.staff.grade.sandbox import Limits, SandboxFailed, SandboxRun
from course_lib.staff.grade.sandbox_side import answers as answers_form
from course_lib.staff.grade.sandbox_side.answers import pack
from course_lib.staff.grade.submissions import Submission

ROOT = Path(__file__).parents[1]
SECRET = b"a secret of the course"
LIMITS = Limits(cell_seconds=7, seconds=70, memory_gib=3)
QUESTIONS = judges.questions("00_start_here")


def submission(*sources: str, **changes) -> Submission:
    cells = [{"cell_type": "code", "source": source, "metadata": {}} for source in sources]
    content = json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}).encode()
    given = {"learner": "ana", "exercise": "00_start_here", "name": "ana", "file": "ana/00.ipynb", "content": content}
    return Submission(**{**given, **changes})


Q1, Q2 = "def shard_sizes(batch, replicas): ...", "def steps_per_epoch(*_): ..."
BOTH = submission("print(1)", Q1, 'check("q1")', Q2)


def sizes(batch: int, replicas: int) -> list[int]:
    return [batch // replicas + (place < batch % replicas) for place in range(replicas)]


def right(seed: int) -> str:
    return pack(ex00.probe_shard_sizes({"shard_sizes": sizes}, seed))


def wrong(seed: int) -> str:
    return pack(ex00.probe_shard_sizes({"shard_sizes": lambda batch, replicas: [batch // replicas] * replicas}, seed))


def graded(runs: list, one: Submission = BOTH):
    """The result, and the jobs that were run; `runs` is what comes back from each (records, ending)."""
    waiting, jobs = [SandboxRun(records, ending) for records, ending in runs], []

    def run(job: dict) -> SandboxRun:
        jobs.append(job)
        return waiting.pop(0)

    done = grade_one.run_submission(one, run, SECRET, LIMITS)
    assert not waiting, "fewer runs were asked for"
    return grade_one.judge_submission(one, done, SECRET, LIMITS, "by"), jobs


def answers(text: str, **changes) -> dict:
    return {"question": "q1", "seed": SEEDS["q1"], "answers": text, **changes}


SEEDS = grade_one.seeds_of(SECRET, BOTH)
END = {"end": True}
ENDED = {"limit": None, "last": 3, "output": "said", "exit": 0}


def test_seeds_follow_from_secret_and_content_alone():
    assert grade_one.seeds_of(SECRET, replace(BOTH, learner="ben", file="other")) == SEEDS
    assert len({*SEEDS.values()}) == len(QUESTIONS)
    for other in (grade_one.seeds_of(b"another", BOTH), grade_one.seeds_of(SECRET, submission(Q1, Q2))):
        assert not {*SEEDS.values()} & {*other.values()}
    assert all(0 <= seed < 2**32 for seed in SEEDS.values())


def test_the_job_says_where_each_question_is_answered_and_holds_no_reference():
    _, (job,) = graded([([END], ENDED)])
    assert job["answering"][:2] == [[1], [3]] and job["checking"][:2] == [[2], []]
    assert [one["seed"] for one in job["questions"]] == list(SEEDS.values())
    assert (job["cell_seconds"], job["seconds"], job["memory_gib"]) == (7, 70, 3)
    assert "judges" not in json.dumps(job)


def test_a_right_answer_counts_whatever_comes_after():
    records = [answers(right(SEEDS["q1"])), answers(wrong(SEEDS["q1"])), END]
    result, _ = graded([(records, ENDED)])
    assert [verdict.points for verdict in result.verdicts] == [1, 0, 0, 0] and (result.points, result.of) == (1, 4)
    assert result.output == "said" and result.seeds == SEEDS and result.graded_by == "by"


def test_a_mistake_is_named():
    result, _ = graded([([answers(wrong(SEEDS["q1"])), END], ENDED)])
    assert result.verdicts[0].mistake == "remainder dropped" and result.points == 0


@pytest.mark.parametrize(
    "record, says",
    [
        (answers("", seed=1), "not checked"),
        (answers(right(1), seed=1), "not checked"),
        (answers("garbage"), "could not be read"),
        (answers(pack([1])), "another form"),
        (answers(3), "could not be read"),
        (answers("[" * 1_000 + "]" * 1_000), "could not be read"),
        (answers("[" + "[]," * answers_form.MOST_VALUES + "0]"), "could not be read"),
        (answers(pack({"sizes": "none"})), "not right"),
        ({"question": "q9", "seed": 1, "answers": ""}, "not checked"),
        ({"question": ["q1"], "seed": None, "answers": None}, "not checked"),
        ({"at": "x", "error": 1}, "not checked"),
    ],
)
def test_forged_or_broken_records_earn_nothing(record, says):
    result, _ = graded([([record, END], ENDED)])
    assert result.points == 0 and says in result.verdicts[0].problem + result.verdicts[0].summary


def test_a_replacement_seen_during_a_probe_counts_against_that_probe_alone():
    q2 = {
        "question": "q2",
        "seed": SEEDS["q2"],
        "answers": pack(ex00.probe_steps({"steps_per_epoch": steps}, SEEDS["q2"])),
    }
    result, _ = graded([([{"changed": "tensorflow.Tensor.device"}, answers(right(SEEDS["q1"])), q2, END], ENDED)])
    assert [verdict.points for verdict in result.verdicts] == [0, 1, 0, 0]
    assert "tensorflow.Tensor.device" in result.verdicts[0].problem


def test_what_other_cells_raised_is_noted_and_costs_nothing():
    errors = [{"error": "ValueError: no\x1b", "at": place} for place in (0, 1)]
    result, _ = graded([([*errors, answers(right(SEEDS["q1"])), END], ENDED)])
    assert result.points == 1 and result.notes == ("cell 1 raised ValueError: no ",)
    assert "cell 2 raised ValueError: no " in result.verdicts[0].notes


@pytest.mark.parametrize(
    "error, says", [("SyntaxError: no colon", True), ("NotImplementedError: q1: write your answer here", False)]
)
def test_an_answer_whose_cell_failed_is_not_called_blank(error, says):
    missing = pack({"stopped": {"kind": "missing", "line": "it asks for shard_sizes"}})
    result, _ = graded([([{"error": error, "at": 1}, answers(missing), END], ENDED)])
    verdict = result.verdicts[0]
    assert (verdict.problem == f"could not run: cell 2 raised {error}") == says == (state(verdict) == "wrong")
    assert verdict.problem.startswith("has no answer yet") != says


def test_the_published_answers_are_for_the_examiner_and_cost_nothing():
    cells = read_notebook(ROOT / "solutions" / "00_start_here.ipynb")["cells"]
    own = [cell["source"] for cell in cells if question_tags(cell)]
    reworded = [re.sub(r"(?m)^ *###.*\n?", "", source) + "\n\n# my own" for source in own]
    for sources, line in (
        (reworded, "q1, q2, q3, q4: the code is"),
        (own[:2], "q1, q2: the code is"),
        (own[:1], ""),
        ([Q1, Q2], ""),
    ):
        result, _ = graded([([END], ENDED)], submission(*sources))
        assert [said for said in result.review if "published" in said] == (
            [f"{line} the published solution's"] if line else []
        )
    assert result.points == 0


def steps(examples: int, batch: int, drop_remainder: bool) -> int:
    return examples // batch if drop_remainder else -(-examples // batch)


@pytest.mark.parametrize(
    "records, ending, says",
    [
        ([], {"limit": "a cell", "last": 1}, "cell 2 ran for more than 7 s, did not let itself be interrupted"),
        ([], {"limit": "in all", "last": "q1"}, "more than 70 s, and was killed in the check of q1"),
        ([], {"limit": "records", "last": 1}, "cell 2 sent more than can be taken"),
        ([], {"limit": None, "last": 1, "memory": True}, "cell 2 took more than 3 GiB"),
        ([], {"limit": None, "last": 1, "exit": 0}, "cell 2 ended the notebook's process (exit code 0)"),
        ([], {"limit": None, "last": 1, "exit": -11}, "cell 2 ended the notebook's process (signal 11)"),
        ([{"refused": "gc.get_objects"}], {"limit": None, "last": 1, "exit": 97}, "it reaches for gc.get_objects"),
    ],
)
def test_what_ended_a_run_is_said_and_left_out_of_the_next(records, ending, says):
    q1 = answers(right(SEEDS["q1"]))
    result, jobs = graded([(records, {"output": "", **ending}), ([q1, END], ENDED)])
    assert says in " ".join(result.notes) and result.points == 1
    key = "skip_questions" if isinstance(ending["last"], str) else "skip_cells"
    assert jobs[1][key] == [ending["last"]] and len(jobs) == 2


def test_points_of_an_earlier_run_are_kept_and_three_runs_are_the_most():
    died = {"limit": None, "output": "", "exit": 1}
    runs = [([answers(right(SEEDS["q1"]))], {**died, "last": 2}), ([], {**died, "last": 3}), ([], {**died, "last": 0})]
    result, jobs = graded(runs)
    assert result.points == 1 and [job["skip_cells"] for job in jobs] == [[], [2], [2, 3]]
    assert "cell 1 ended the notebook's process" in result.verdicts[1].problem


def test_a_submission_that_cannot_be_graded_asks_for_no_sandbox():
    result, jobs = graded([], submission(problem="it is not a notebook"))
    assert result.problem == "it is not a notebook" and jobs == [] and result.of == 0


# One submission never stops the class.


class _Failing:
    """A sandbox that fails at every job, before or after its imports."""

    def __init__(self, backend: str, enclosed: bool, is_ready: bool) -> None:
        self.backend, self.is_ready = backend, is_ready

    def run(self, job: dict) -> SandboxRun:
        raise SandboxFailed("it fell silent")

    def kill(self) -> None:
        pass

    close = kill


def test_what_fails_its_sandbox_twice_is_its_own_result_and_is_tried_again(monkeypatch):
    monkeypatch.setattr(grade_class, "Sandbox", lambda *given: _Failing(*given, is_ready=True))
    pool = grade_class.SandboxPool(enclosed=True)
    runs = partial(grade_one.run_submission, BOTH, partial(pool.run, "tensorflow"), SECRET, LIMITS)
    result = grade_class._result(BOTH, runs, SECRET, LIMITS, "by")
    assert result.problem == "it could not be graded: its sandbox failed 2 times (it fell silent)"
    assert (result.points, result.verdicts, result.graded_by) == (0, (), "")


def test_a_sandbox_that_never_gets_ready_stops_the_class_with_one_line(monkeypatch):
    monkeypatch.setattr(grade_class, "Sandbox", lambda *given: _Failing(*given, is_ready=False))
    with pytest.raises(CourseError, match="failed 2 times in a row before it was ready: it fell silent"):
        grade_class.SandboxPool(enclosed=True).run("tensorflow", {})


@pytest.mark.parametrize("error", [TypeError("unsupported"), RecursionError("deep"), MemoryError()], ids=repr)
def test_what_cannot_be_judged_is_its_own_result(error):
    def runs():
        raise error

    result = grade_class._result(BOTH, runs, SECRET, LIMITS, "by")
    assert result.problem.startswith("it could not be graded: what came back cannot be judged (")
    assert len(result.problem) <= 300 and result.graded_by == ""
