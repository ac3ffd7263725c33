"""Exercise 04, q4 and q5: asynchronous training, a killed server.

Needs NumPy; TensorFlow in the processes of their programs.
"""

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex04 as probes
from course_lib.exercises.question import Target

question = question_maker.of("04_parameter_server")
# Servers add without a lock, so under load an addition to one row is lost now and then: seen once in 7 runs, 0.6% of
# the largest number and 0.004% of the sum. A batch that is lost or applied twice changes the sum by 0.2% or more.
LOST_OF_SUM, LOST_OF_LARGEST = 1e-3, 2e-2
TABLE_IS_RIGHT = (
    "the table is what every batch, applied once, makes of it: its sum to 0.1%, each number to 2% of the largest"
)


# q4: asynchronous training on real servers


def _table_after(settings, batches):
    """The table, in NumPy, after every one of these batches was applied once; the order does not matter."""
    table = np.zeros((settings["rows"], settings["width"]))
    for numbers, values in batches:
        step = settings["learning_rate"] * np.float64(values) / len(values)  # (batch,)
        np.add.at(table, np.array(numbers), step[:, None, None])
    return table


def _is_table(table, wanted):
    table = np.array(table, "float64")
    if table.shape != wanted.shape:
        return f"it has shape {table.shape}"
    off, of_sum = np.abs(table - wanted).max() / np.abs(wanted).max(), abs(table.sum() / wanted.sum() - 1)
    is_right = of_sum <= LOST_OF_SUM and off <= LOST_OF_LARGEST
    return bool(is_right) or f"it is off by up to {off:.3%}, its sum by {of_sum:.3%}"


def _two_and_two(answers, seed):
    return answers["tasks"] == [2, 2] or f"your job has {' and '.join(map(str, answers['tasks']))}"


def _cut_over_both(answers, seed):
    rows, held = probes.visits(seed)["rows"], sorted([server, len(held)] for server, held in answers["seen"]["shards"])
    right = [server for server, _ in held] == ["ps 0", "ps 1"]
    if not (right and sorted(number for _, number in held) == [rows // 2, rows - rows // 2]):
        return f"of {rows} rows the servers hold {_listed(held)}"
    return sorted(answers["shards"]) == held or f"the servers hold {_listed(held)}, and you return {answers['shards']}"


def _listed(shards):
    return ", ".join(f"{rows} on {server}" for server, rows in shards) or "none"


def _counted(answers, wanted):
    if wanted not in answers["seen"]["counted"]:
        return f"{' or '.join(map(str, answers['seen']['counted'])) or 'no optimizer has counted any'} of {wanted}"
    return answers["counted"] == wanted or f"it counts {wanted}, and you return {answers['counted']}"


def _one_update_each(answers, seed):
    if (said := _counted(answers, probes.UPDATES)) is not True:
        return said
    steps = answers["seen"]["scheduled"]
    return steps >= probes.UPDATES or f"you schedule {steps} steps for {probes.UPDATES} batches"


def _each_applied_once(answers, seed):
    settings = probes.visits(seed)
    wanted = _table_after(settings, settings["batches"])
    found = _is_table(answers["table"], wanted)
    found = found if found is not True else _are_on_servers(answers, wanted)
    if found is True and answers["seen"]["writes"]:
        return "after the first step something else than your steps' updates was written into it"
    return found


def _are_on_servers(answers, wanted):
    """Whether the servers hold these rows, cut as they are and in whatever order, and held them after the last step."""
    if not _hold(answers["seen"]["shards"], wanted):
        return "what you return is, and the servers hold another table"
    after_steps = answers["seen"]["after_steps"]
    made_by_steps = after_steps is None or _hold(after_steps, wanted)
    return made_by_steps or "it is at the end, and when the steps were done the servers held another table"


def _hold(shards, wanted):
    held = np.array([row for _, rows in shards for row in rows])
    return bool(held.shape == wanted.shape and abs(held.sum() / wanted.sum() - 1) <= LOST_OF_SUM)


def _steps_compute(answers, seed):
    if not answers["seen"]["scheduled"]:
        return "no step is scheduled"
    if not answers["seen"]["reads"]:
        return "your steps read nothing of the table"
    sent = answers["seen"]["sent"]
    return not sent or f"{sent} of yours are sent numbers that are neither rows' numbers nor values of visits"


def _asynchronous(answers, seed):
    staleness = answers["staleness"]
    if len(staleness) != probes.UPDATES:
        return f"you return {len(staleness)} of them for {probes.UPDATES} updates"
    if answers["seen"]["at_once"] < 2 or not any(staleness):
        return "none of yours is stale: nobody worked while another did"
    return min(staleness) == 0 or f"your least is {min(staleness)}, and the first update comes after no other"


def _summed(answers, seed):
    """Whether the table is what the batches give when their losses are sums."""
    settings = probes.visits(seed)
    batches = [(numbers, np.float64(values) * len(values)) for numbers, values in settings["batches"]]
    return _is_table(answers["table"], _table_after(settings, batches)) is True


def _not_zeros(answers, seed):
    """Whether the table is off by what Keras' initial embedding may be, and every update is counted.

    The right rows in another order are not meant.
    """
    settings = probes.visits(seed)
    table, wanted = np.array(answers["table"]), _table_after(settings, settings["batches"])
    if _is_table(np.sort(table, axis=0), np.sort(wanted, axis=0)) is True:
        return False
    off = table - wanted
    return answers["counted"] == probes.UPDATES and 0.04 < np.abs(off).max() < 0.0501 and abs(off.mean()) < 0.01


def _factor(answers, seed):
    """How many times the right table yours is; None where it is none of its multiples."""
    settings = probes.visits(seed)
    wanted, table = _table_after(settings, settings["batches"]), np.array(answers["table"])
    factor = table.sum() / wanted.sum()
    return factor if factor and _is_table(table / factor, wanted) is True else None


def _means_of_numbers(answers, seed):
    """Whether the table is too small by the rows of a visit, or by the numbers in them; 2 may be the workers."""
    visited, width = len(probes.visits(seed)["batches"][0][0][0]), probes.visits(seed)["width"]
    means = [over for over in (visited, width, visited * width) if over > probes.WORKERS]
    return any(abs(_factor(answers, seed) * over - 1) <= LOST_OF_SUM for over in means)


def _found_once(answers, seed):
    """Whether the table is what the batches give when each visit finds a row once, however often it lists it."""
    settings = probes.visits(seed)
    wanted = np.zeros((settings["rows"], settings["width"]))
    for numbers, values in settings["batches"]:
        for visited, value in zip(numbers, values):
            wanted[list({*visited})] += settings["learning_rate"] * value / len(values)
    return _each_applied_once(answers, seed) is not True and _is_table(answers["table"], wanted) is True


def _no_optimizer(answers, seed):
    """The table is right, and no optimizer has counted any update, whatever the program returns."""
    return not any(answers["seen"]["counted"]) and _each_applied_once(answers, seed) is True


def _lost_counts(answers, seed):
    """Its own counter has fewer, whatever the program returns."""
    return max(answers["seen"]["counted"]) < probes.UPDATES and _each_applied_once(answers, seed) is True


def _tables_held(answers, seed):
    """How many tables of the right size the servers hold."""
    return sum(len(held) for _, held in answers["seen"]["shards"]) / probes.visits(seed)["rows"]


def _applied_again(answers, seed):
    settings = probes.visits(seed)
    more = np.sum(answers["table"]) / _table_after(settings, settings["batches"]).sum() - 1
    return max(answers["seen"]["counted"]) > probes.UPDATES and more > LOST_OF_SUM


_SHARDS = [(forms.text, forms.array)]
_SEEN = {"shards": _SHARDS, "after_steps": forms.either(_SHARDS, forms.nothing), "counted": [forms.whole]}
_SEEN |= dict.fromkeys(("writes", "scheduled", "at_once", "reads", "sent"), forms.size)
_TRAINED = {"counted": forms.number, "table": forms.array, "seen": _SEEN, str: forms.anything}
_TASKS = {"tasks": (forms.whole, forms.whole), "shards": [(forms.text, forms.size)], "staleness": [forms.distance]}
TRAIN = question(
    name="q4",
    title="Train on two servers",
    asks_for=("train", "make_job"),
    probe=probes.probe_train,
    form={**_TASKS, **_TRAINED},
    takes_long=True,
    targets=(
        Target("two workers and two servers", _two_and_two),
        Target("the table is in two shards, one on each server, within one row of equal", _cut_over_both),
        Target(f"the optimizer counts all {probes.UPDATES} updates, one for each batch", _one_update_each),
        Target(TABLE_IS_RIGHT, _each_applied_once),
        Target("each step is sent a batch, reads its rows and computes the gradients", _steps_compute),
        Target("workers overlap: some updates are stale", _asynchronous),
    ),
    recognise={
        "model outside the scope": lambda answers, seed: (
            "was made outside strategy.scope()" in answers["stopped"]["error"]
            if "stopped" in answers
            else not (answers["seen"]["shards"] or answers["seen"]["counted"])
        ),
        "other tasks": lambda answers, seed: answers["tasks"] != [2, 2],
        "more than the table": lambda answers, seed: _tables_held(answers, seed) >= 2,
        "too many shards": lambda answers, seed: (
            _tables_held(answers, seed) == 1 and len(answers["seen"]["shards"]) > 2
        ),
        "applied again": _applied_again,
        "the other way": lambda answers, seed: abs(_factor(answers, seed) + 1) <= LOST_OF_SUM,
        "means of numbers": _means_of_numbers,
        "one factor": lambda answers, seed: abs(_factor(answers, seed) - 1) > LOST_OF_SUM,
        "not waited for": lambda answers, seed: (
            answers["counted"] < probes.UPDATES
            and answers["seen"]["at_once"] > 1
            and _each_applied_once(answers, seed) is not True
            and (answers["seen"]["after_steps"] is None or answers["counted"] < max(answers["seen"]["counted"]))
        ),
        "not cut": lambda answers, seed: len(answers["seen"]["shards"]) == 1,
        "no optimizer": _no_optimizer,
        "lost counts": _lost_counts,
        "nothing scheduled": lambda answers, seed: (
            answers["seen"]["scheduled"] == 0 and _each_applied_once(answers, seed) is True
        ),
        "written besides": lambda answers, seed: answers["seen"]["writes"] > 0,
        "found once": _found_once,
        "in turns": lambda answers, seed: answers["seen"]["at_once"] == 1,
        "itself counted": lambda answers, seed: min(answers["staleness"]) == 1,
        "not zeros at first": _not_zeros,
        "summed": _summed,
    },
)


# q5: a killed server


def _kills(seed):
    """(updates done, those at the last save) at each kill."""
    return [(done, done // probes.SAVE_EVERY * probes.SAVE_EVERY) for done in probes.visits_through(seed)["dies_after"]]


def _done(answers, attempt):
    return [done for number, done in answers["reports"] if number == attempt]


def _began_after(answers, seed):
    """For each kill: updates done, those saved, and the updates with which the next attempt began."""
    return [
        (done, saved, min(_done(answers, attempt)) - probes.TOGETHER)
        for attempt, (done, saved) in enumerate(_kills(seed), 1)
    ]


def _goes_on_after_the_save(answers, seed):
    begins, ends = [0, *(saved for _, saved in _kills(seed))], [*(done for done, _ in _kills(seed)), probes.RUN]
    for attempt, (begin, end) in enumerate(zip(begins, ends)):
        done = _done(answers, attempt)
        if not done:
            return f"attempt {attempt} reports nothing: report `done` after each group"
        if attempt and done[0] - probes.TOGETHER != begin:
            said = f"killed after update {ends[attempt - 1]}, with a save after every {probes.SAVE_EVERY}"
            return f"{said}, yours report {done[0]} done after one group"
        if done != [begin + (place + 1) * probes.TOGETHER for place in range(len(done))]:
            return f"the groups of attempt {attempt} report {', '.join(map(str, done))}"
        if done[-1] > end:
            return f"attempt {attempt} reports {done[-1]} done, and its last group is that of update {end}"
        if done[-1] < end != probes.RUN:
            return f"attempt {attempt} was killed after update {end}, and its last report says {done[-1]}"
    if done[-1] != probes.RUN:
        return f"the last report says {done[-1]} of {probes.RUN} updates"
    steps, left = answers["seen"]["scheduled"], probes.RUN - begins[-1]
    return steps < left + probes.TOGETHER or f"the last attempt schedules {steps} steps, and {left} batches were left"


def _in_groups(answers, seed):
    at_once = answers["at_once"]
    return at_once == probes.TOGETHER or f"at most {at_once} were under way at once, and a group has {probes.TOGETHER}"


def _saved_when_due(answers, seed):
    """Whether new bytes lie in the task's folder with each report with which a save is due, and none as large as half a
    table with others. Equal columns, as this table has, may be packed into less than one column.
    """
    half_a_column = 4 * probes.visits_through(seed)["rows"] / 2
    rows = zip(answers["reports"], answers["saved"], strict=True)
    due = [(done, saved) for (_, done), saved in rows if done % probes.SAVE_EVERY == 0 and done < probes.RUN]
    missing = [done for done, saved in due if saved < half_a_column]
    if missing:
        return f"with the report of {missing[0]} updates the task's folder has no new file as large as a save"
    return _no_early_save(answers, seed)


def _saved_early(answers, seed):
    """Of each report with which no save was due, before the end: its updates, and whether there was one.

    A save is new bytes in the task's folder that hold half a table or more; a note of a number is not one.
    """
    settings = probes.visits_through(seed)
    half_a_table = 4 * settings["rows"] * settings["width"] / 2
    rows = zip(answers["reports"], answers["saved"], strict=True)
    early = [(done, saved) for (_, done), saved in rows if done % probes.SAVE_EVERY and done < probes.RUN]
    return [(done, saved >= half_a_table) for done, saved in early]


def _no_early_save(answers, seed):
    early = [done for done, saved in _saved_early(answers, seed) if saved]
    return not early or f"with the report of {early[0]} updates the task's folder has new files as large as a save"


def _applied(answers, seed, *spans):
    """Whether the table is what these spans of the batches make of it."""
    settings = probes.visits_through(seed)
    batches = [batch for first, last in spans for batch in settings["batches"][first:last]]
    return _is_table(answers["table"], _table_after(settings, batches))


def _applied_through(answers, seed):
    found, settings = _applied(answers, seed, (0, probes.RUN)), probes.visits_through(seed)
    return found if found is not True else _are_on_servers(answers, _table_after(settings, settings["batches"]))


def _began(answers, seed, first, *spans):
    """Whether each next attempt began after `first(done, saved)` updates, and the table is what these spans give."""
    began = all(at == first(done, saved) for done, saved, at in _began_after(answers, seed))
    return began and (not spans or _applied(answers, seed, *spans) is True)


def _from_the_start(done, saved):
    return 0


def _from_the_save(done, saved):
    return saved


def _from_a_save_too_early(done, saved):
    return (done - 1) // probes.SAVE_EVERY * probes.SAVE_EVERY


def _from_nothing(answers, seed):
    """Every attempt goes through all batches, as far as it comes."""
    last = max(_done(answers, len(_kills(seed))))
    return last == probes.RUN and _began(answers, seed, _from_the_start, (0, probes.RUN))


def _counter_again(answers, seed):
    """The last attempt went on after a save, and counts its own updates alone."""
    *_, (_, _, began) = _began_after(answers, seed)
    forgotten = 0 < began == probes.RUN - answers["counted"] == probes.RUN - max(answers["seen"]["counted"])
    return forgotten and _applied(answers, seed, (began, probes.RUN)) is not True


def _count_lost(answers, seed):
    """All else is right, the returned count too, and the optimizer has the updates since its last restart."""
    *_, (_, _, began) = _began_after(answers, seed)
    others = (target for target in RECOVERY.targets if target is not RECOVERY.targets[1])
    counts = answers["counted"], max(answers["seen"]["counted"])
    return counts == (probes.RUN, probes.RUN - began) and all(each.holds(answers, seed) is True for each in others)


def _last_attempts_save_alone(answers, seed):
    """An attempt goes on after the save of the one before it, and from the start where that one saved nothing."""
    before, found = 0, []
    for _, saved, began in _began_after(answers, seed):
        found.append(began == (saved if saved > before else 0))
        before = saved
    return all(found) and _applied(answers, seed, (0, probes.RUN)) is True


def _saved_too_often(answers, seed):
    """A save at each report, whichever of them are restored."""
    early = _saved_early(answers, seed)
    return bool(early) and all(saved for _, saved in early)


def _a_group_too_late(answers, seed):
    """What follows the first save is left out by those who go on from there; later, where only batches are counted."""
    (_, first), *_, (_, last) = _kills(seed)
    began, after = [at for _, _, at in _began_after(answers, seed)], first + probes.TOGETHER
    once = (0, first), (after, probes.RUN)
    twice = (0, first), (after, last), (last + probes.TOGETHER, probes.RUN)
    return began[:2] == [after, after] and any(_applied(answers, seed, *spans) is True for spans in (once, twice))


def _where_it_died(answers, seed):
    """Every attempt goes on there, and what came between the save and the kill is lost."""
    settings = probes.visits_through(seed)
    wanted = _table_after(settings, settings["batches"]).sum()
    return np.sum(answers["table"]) < wanted * (1 - LOST_OF_SUM) and _began(answers, seed, lambda done, saved: done)


def _other_batches(answers, seed):
    """As many updates as batches, and the table that they made is about as large, and another one."""
    settings, table = probes.visits_through(seed), np.array(answers["table"])
    near = abs(table.sum() / _table_after(settings, settings["batches"]).sum() - 1) < 0.1
    counted = near and _counted(answers, probes.RUN) is True and _are_on_servers(answers, table) is True
    return counted and _began(answers, seed, _from_the_save) and _applied(answers, seed, (0, probes.RUN)) is not True


def _all_at_once(answers, seed):
    """The last attempt scheduled more than a group; or nothing, because the first save held all updates."""
    at_once = max(answers["at_once"], answers["seen"]["at_once"])
    return at_once > probes.TOGETHER or at_once == 0 and not _done(answers, 1)


def _ends_after(answers, seed, last):
    """Whether each attempt went on after its save, and the last one's last report is of so many updates."""
    reported = _done(answers, len(_kills(seed)))
    return reported[-1] == last and _began(answers, seed, _from_the_save)


RECOVERY = question(
    name="q5",
    title="Lose the server, and nothing else",
    asks_for=("train_through",),
    probe=probes.probe_recovery,
    form={"reports": [(forms.whole, forms.number)], "saved": [forms.size], "at_once": forms.size, **_TRAINED},
    takes_long=True,
    targets=(
        Target("after the kill the run goes on after the last save", _goes_on_after_the_save),
        Target(
            f"the optimizer counts {probes.RUN} updates, no fewer and no more",
            lambda answers, seed: _counted(answers, probes.RUN),
        ),
        Target(TABLE_IS_RIGHT, _applied_through),
        Target("the batches of a group are scheduled at once, and no more", _in_groups),
        Target("before the end, a state is saved wherever a save is due, and nowhere else", _saved_when_due),
    ),
    recognise={
        "nobody killed": lambda answers, seed: answers["stopped"]["error"] == probes.NOBODY_DIED,
        "groups counted": lambda answers, seed: (
            _done(answers, 0)[:2] == [1, 2]
            and answers["at_once"] > 1
            and answers["counted"] != probes.RUN  # else each batch is a group
        ),
        "reports too seldom": lambda answers, seed: _done(answers, 0)[0] > probes.TOGETHER,
        "one at a time": lambda answers, seed: answers["at_once"] == 1,
        "cut before the report": lambda answers, seed: all(
            max(_done(answers, attempt)) == done - probes.TOGETHER for attempt, (done, _) in enumerate(_kills(seed))
        ),
        "all at once": _all_at_once,
        "counter forgotten": _counter_again,
        "count lost": _count_lost,
        "last attempt's save alone": _last_attempts_save_alone,
        "state without a home": _from_nothing,
        "all batches again": lambda answers, seed: _began(
            answers, seed, _from_the_start, *((0, saved) for _, saved in _kills(seed)), (0, probes.RUN)
        ),
        "table forgotten": lambda answers, seed: _began(
            answers, seed, _from_the_save, (_kills(seed)[-1][1], probes.RUN)
        ),
        "saved too often": _saved_too_often,
        "one group too late": _a_group_too_late,
        "first attempt's save": lambda answers, seed: _began(answers, seed, lambda done, saved: _kills(seed)[0][1]),
        "where it died": _where_it_died,
        "other batches": _other_batches,
        "a group missing": lambda answers, seed: _ends_after(answers, seed, probes.RUN - probes.TOGETHER),
        "a group too many": lambda answers, seed: _ends_after(answers, seed, probes.RUN + probes.TOGETHER),
        "cut before the save": lambda answers, seed: _began(answers, seed, _from_a_save_too_early),
    },
)
