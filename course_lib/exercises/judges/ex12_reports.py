"""Exercise 12, q1: reports of jobs that stand still, read by rules. Needs NumPy."""

from dataclasses import replace

from course_lib.exercises.given.seen_tasks import seen_jobs
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex12 as probes
from course_lib.exercises.probes import ex12_cases
from course_lib.exercises.question import Target

question = question_maker.of("12_when_it_hangs")


_RULES = {
    "lost": lambda one, others: one.state == "ended",
    "not started": lambda one, others: not one.joined,
    "entered alone": lambda one, others: not {*one.calls} <= {call for other in others for call in other.calls},
    "other order": lambda one, others: any(
        own not in calls for own, *calls in zip(one.calls, *(other.calls for other in others))
    ),
    "data ended": lambda one, others: one.state == "returned",
    "input": lambda one, others: one.at == "input",
    "own code": lambda one, others: one.at == "own code",
}


def _others(one, tasks):
    return [other for other in tasks if other is not one]


def _odd(tasks):
    """The task that differs."""
    looks = [replace(one, name="") for one in tasks]
    return next(one for one, look in zip(tasks, looks) if looks.count(look) == 1)


def _cause(tasks):
    """(task, cause) by the rules of the question."""
    one = _odd(tasks)
    return one.name, next(cause for cause, fits in _RULES.items() if fits(one, _others(one, tasks)))


def _rules_first(tasks):
    """The first rule that fits any task."""
    fitting = ((one.name, cause) for cause, fits in _RULES.items() for one in tasks if fits(one, _others(one, tasks)))
    return next(fitting)


def _tasks_first(tasks):
    """The first task that any rule fits."""
    fitting = ((one.name, cause) for one in tasks for cause, fits in _RULES.items() if fits(one, _others(one, tasks)))
    return next(fitting)


def _jobs(answers, seed):
    """Of seen_jobs: tasks, (task, cause) of the answer, (task, cause) by the rules; the shortest records first."""
    return _rows(seen_jobs(seed), answers["jobs"])


def _rows(jobs, found):
    rows = [(job, said, _cause(job)) for job, said in zip(jobs, found, strict=True)]
    return sorted(rows, key=lambda row: sum(len(one.calls) for one in row[0]))


def _all_jobs(answers, seed):
    """Those of seen_jobs first: their mistakes have names."""
    return [*_jobs(answers, seed), *_rows(ex12_cases.more_jobs(seed), answers["more"])]


def _described(tasks):
    """A job in one line: what several tasks share stands there once."""
    alike = {}
    for one in tasks:
        inside, after = f"in call {len(one.calls)}", f"after {len(one.calls)} calls"
        where = inside if one.inside else f"at {one.at}" if one.at else after
        said = [one.state, *([] if one.joined else ["not joined"]), where]
        calls = f" ({' '.join(map(_call_words, one.calls))})" if one.calls else ""
        alike.setdefault(f"{', '.join(said)}{calls}", []).append(one.name)
    return "; ".join(f"{_listed(names)}: {text}" for text, names in alike.items())


def _call_words(name):
    return name if name.isidentifier() else repr(name)


def _listed(names):
    *more, last = names
    return f"{', '.join(more)} and {last}" if more else last


def _right_task(answers, seed):
    for job, (task, _), (wanted, _) in _all_jobs(answers, seed):
        if task != wanted:
            return f"you say {task!r} where the job is {_described(job)}"
    return True


def _right_cause(answers, seed):
    for job, (_, cause), (_, wanted) in _all_jobs(answers, seed):
        if cause != wanted:
            return f"you say {cause!r} where the job is {_described(job)}"
    return True


def _misread(due, *said):
    """A recogniser: for a job with this cause the answer names the right task, and says one of the others."""

    def recognise(answers, seed):
        return any(
            task == odd and wanted == due and cause in said for _, (task, cause), (odd, wanted) in _jobs(answers, seed)
        )

    return recognise


def _wrong_where(due, differs):
    """A recogniser: of the jobs with this cause, just those are wrong where differs(task, another one) is true.

    differs  None where the job may be right or wrong
    """

    def recognise(answers, seed):
        found = set()
        for job, said, wanted in _jobs(answers, seed):
            if wanted[1] == due:
                odd = _odd(job)
                found.add((differs(odd, _others(odd, job)[0]), tuple(said) != wanted))
        return (True, True) in found and not found & {(True, False), (False, True)}

    return recognise


def _one_of_those_gone(answers, seed):
    """Where all others have ended, it names one of them; every other job's task is right."""
    jobs = [(job, said, _odd(job)) for job, said, _ in _jobs(answers, seed)]
    gone = [_others(odd, job)[0].state == "ended" for job, _, odd in jobs]
    wrong = [task != odd.name for _, (task, _), odd in jobs]
    return any(gone) and wrong == gone


def _same_calls(odd, other):
    return sorted(odd.calls) == sorted(other.calls) if len(odd.calls) == len(other.calls) else None


def _repeats_its_own(odd, other):
    return any(odd.calls.count(call) > 1 for call in {*odd.calls} - {*other.calls})


def _fewer_calls(odd, other):
    fewer = len(odd.calls) < len(other.calls)
    return None if fewer and odd.inside else fewer


def _order_before_alone(answers, seed):
    """Where an own call stands at a place where the others have another one, the answer says other order."""
    rows = [(job, cause) for job, (_, cause), (_, wanted) in _jobs(answers, seed) if wanted == "entered alone"]
    apart = [cause for job, cause in rows if any(len({*calls}) > 1 for calls in zip(*(one.calls for one in job)))]
    return all(cause == "other order" for cause in apart)


def _first_departs(answers, seed):
    """The first task is named where another one departs."""
    return any(
        cause == due == "other order" and task == job[0].name != wanted
        for job, (task, cause), (wanted, due) in _jobs(answers, seed)
    )


def _who_waits_to_start(answers, seed):
    return any(
        cause == due == "not started" and any(one.name == task and one.at == "strategy" for one in job)
        for job, (task, cause), (_, due) in _jobs(answers, seed)
    )


def _as_the_first(answers, seed):
    """It names the first task that is unlike the first of all."""
    rows = [(job, task, wanted) for job, (task, _), (wanted, _) in _jobs(answers, seed)]
    return all(task == (job[1].name if wanted == job[0].name else wanted) for job, task, wanted in rows)


def _alone_with_others(answers, seed):
    """It says entered alone of a task that is like another one."""
    return any(
        cause == "entered alone" and task != wanted and task in {one.name for one in job}
        for job, (task, cause), (wanted, _) in _jobs(answers, seed)
    )


def _one_of_the_others(answers, seed):
    """Where the others have returned, one of them is named."""
    return any(
        task != wanted and any(one.name == task and one.state == "returned" for one in job)
        for job, (task, _), (wanted, _) in _jobs(answers, seed)
    )


def _by_tasks(answers, seed):
    return all(tuple(said) == _tasks_first(job) for job, said, _ in _jobs(answers, seed))


def _leaves_out(answers, seed):
    """A task at some place of the list is never named, though every one is due; no name is made up."""
    jobs = _jobs(answers, seed)
    due, said = ({_place(row[0], row[which][0]) for row in jobs} for which in (2, 1))
    return due > said


def _names_by_place(answers, seed):
    """It gives the right tasks names that it made of their places."""
    rows = [(_place(job, wanted), task, wanted) for job, (task, _), (wanted, _) in _jobs(answers, seed)]
    wrong = any(task != wanted for _, task, wanted in rows)
    return wrong and all(task in (wanted, f"worker {place}") for place, task, wanted in rows)


def _place(job, name):
    return [one.name for one in job].index(name)


def _wrong_at(differs):
    """A recogniser: the task is wrong in just the jobs where differs(task that is due, another one) is true."""

    def recognise(answers, seed):
        rows = [
            (bool(differs(_odd(job), _others(_odd(job), job)[0])), task != wanted)
            for job, (task, _), (wanted, _) in _jobs(answers, seed)
        ]
        return (True, True) in rows and (False, True) not in rows

    return recognise


def _at_alone(odd, other):
    return odd.at != other.at and replace(odd, name="", at="") == replace(other, name="", at="")


def _no_call_yet(answers, seed):
    """It says not started of tasks that have joined and made no call."""
    found = [_odd(job) for job, (_, cause), (_, due) in _jobs(answers, seed) if cause == "not started" != due]
    return bool(found) and all(odd.joined and not odd.calls for odd in found)


def _alone_so_far(answers, seed):
    """It says entered alone of tasks whose calls the others make later."""
    rows = [_calls_so_far(job) for job, (_, cause), (_, due) in _jobs(answers, seed) if cause == "entered alone" != due]
    return bool(rows) and all(rows)


def _calls_so_far(job):
    """Whether the task that differs has a call which the others, after as many calls, have not made."""
    odd = _odd(job)
    return bool({*odd.calls} - {*_others(odd, job)[0].calls[: len(odd.calls)]})


def _wrong_in(wanted_wrong):
    """A recogniser: of all jobs, just those are wrong where wanted_wrong(odd, other, due, what is said) is true."""

    def recognise(answers, seed):
        found = [
            (wanted_wrong(_odd(job), _others(_odd(job), job)[0], wanted[1]), tuple(said) != wanted)
            for job, said, wanted in _all_jobs(answers, seed)
        ]
        return (True, True) in found and not {(True, False), (False, True)} & {*found}

    return recognise


def _departs_at(odd, other):
    """The first place at which both have calls, and not the same one."""
    return next(place for place, (own, call) in enumerate(zip(odd.calls, other.calls)) if own != call)


def _first_so_many(answers, seed):
    """The cause of tasks that depart from the others is wrong beyond some place, and all else is right."""
    jobs = [(_odd(job), job, tuple(said), wanted) for job, said, wanted in _all_jobs(answers, seed)]
    rows = [
        (_departs_at(odd, _others(odd, job)[0]), said != due) for odd, job, said, due in jobs if due[1] == "other order"
    ]
    most = min((place for place, wrong in rows if wrong), default=0)
    others_right = all(said == due for *_, said, due in jobs if due[1] != "other order")
    return most > 3 and others_right and all(wrong == (place >= most) for place, wrong in rows)


def _names_as_text(answers, seed):
    """The cause is wrong only where one text of a task's calls is that of another's, or begins as it does."""
    wrong = [(_odd(job), job) for job, said, wanted in _all_jobs(answers, seed) if tuple(said) != wanted]
    pairs = [(odd.calls, _others(odd, job)[0].calls) for odd, job in wrong]
    return bool(pairs) and all(any(_reads_alike(*pair, between) for between in ex12_cases.BETWEEN) for pair in pairs)


def _reads_alike(own, calls, between):
    one, other = (between.join(each) for each in (own, calls))
    return own != calls[: len(own)] and calls != own[: len(calls)] and (one.startswith(other) or other.startswith(one))


def _returned_after_as_many(odd, other, due):
    return due == "data ended" and len(odd.calls) >= len(other.calls)


DIAGNOSE = question(
    name="q1",
    title="Read the reports",
    asks_for=("diagnose",),
    probe=probes.probe_diagnose,
    form=dict.fromkeys(("jobs", "more"), [(forms.text, forms.text)]),
    targets=(Target("the right task in all jobs", _right_task), Target("the right cause in all jobs", _right_cause)),
    recognise={
        "one of those gone": _one_of_those_gone,
        "names by place": _names_by_place,
        "first task is right": _as_the_first,
        "at left out": _wrong_at(_at_alone),
        "no call yet": _no_call_yet,
        "calls so far": _alone_so_far,
        "last calls alone": _wrong_where("other order", lambda odd, other: odd.calls[-1] == other.calls[-1]),
        "returned first": _wrong_where("other order", lambda odd, other: odd.state == "returned"),
        "differs from one": _first_departs,
        "first calls alone": _first_so_many,
        "names as text": _names_as_text,
        "returned after as many": _wrong_in(_returned_after_as_many),
        "nobody's own call": _order_before_alone,
        "who waits to start": _who_waits_to_start,
        "names by heart": _misread("data ended", "entered alone"),
        "counted against": _misread("other order", "entered alone"),
        "missed by one": _alone_with_others,
        "lost comes first": _misread("lost", "not started", "entered alone"),
        "own call earlier": _wrong_where("entered alone", lambda odd, other: odd.calls[-1] in other.calls),
        "alone while inside": _wrong_where("entered alone", lambda odd, other: not odd.inside),
        "counted once": _wrong_where("entered alone", _repeats_its_own),
        "calls without order": _wrong_where("other order", _same_calls),
        "one call less": _wrong_where("other order", _fewer_calls),
        "shorter lists": lambda answers, seed: any(
            _misread(due, "other order")(answers, seed) for due in ("data ended", "input", "own code")
        ),
        "a call behind": lambda answers, seed: (
            _misread("input", "data ended")(answers, seed) or _misread("own code", "data ended")(answers, seed)
        ),
        "rules before the task": _one_of_the_others,
        "one task after the other": _by_tasks,
        "a task left out": _leaves_out,
    },
    wrong={
        "rules before the task": _rules_first,
        "one task after the other": _tasks_first,
        "a task left out": lambda tasks: (tasks[1].name, _cause(tasks)[1]),
    },
)
