"""What a hang report knows of the tasks of jobs that stand still: drawn reports for exercise 12. Needs NumPy."""

from dataclasses import dataclass, replace

import numpy as np

USUAL = ("train_step", "train_step", "save", "train_step", "evaluate", "train_step", "save", "train_step", "train_step")
OWN = {7: "summary", 8: "export", 9: "predict"}  # a call that is none of these, by their number
ALIKE = "step", "train_step_2"  # the one is part of "train_step", and that of the other
NAMES = ("save", "evaluate", *OWN.values())  # which of them all tasks call, and which one alone, is drawn


@dataclass(frozen=True)
class SeenTask:
    """One task of a job that stands still.

    name    such as "worker 0" or "chief 0"; a job's tasks come in any order, and some numbers may be missing
    state   "running"; "returned" when its program has; "ended" when its process is gone and its program had not
    joined  it made its strategy, or waits in it for the others
    calls   the collective calls that it entered, in order: ("train_step", "save")
    inside  it has not come back from the last of them
    at      where a running task is that is in no call: "strategy", where it waits for others to join, "input" or
            "own code"; else ""
    """

    name: str
    state: str = "running"
    joined: bool = True
    calls: tuple[str, ...] = ()
    inside: bool = False
    at: str = ""


def seen_jobs(seed: int) -> list[list[SeenTask]]:
    """Jobs of three to five tasks; in each, one differs from all others, which are alike.

    Every way of differing is met with the first task, with the last one and with one between; once with few calls, or
    none, and once after many that are the same on all.
    """
    rng, jobs = np.random.default_rng(seed), []
    for differs in _WAYS:
        for tasks in (3, 4, 5):
            place = {3: 0, 4: int(rng.integers(1, 3)), 5: 4}[tasks]
            length = int(rng.integers(7, len(USUAL) + 1))  # so that each name of USUAL is among the calls
            before = {3: 0, 4: int(rng.integers(1, 4)), 5: int(rng.integers(10, 40))}[tasks]
            others, odd = _renamed(rng, _after(rng.choice(USUAL, before).tolist(), differs(rng, length)))
            names = _task_names(rng, tasks)
            jobs.append([replace(odd if k == place else others, name=name) for k, name in enumerate(names)])
    return jobs


def _task_names(rng, tasks) -> list[str]:
    """In their usual order on three tasks; on more in any order, of more workers, one of which is a chief."""
    if tasks == 3:
        return [f"worker {k}" for k in range(tasks)]
    names = [f"worker {k}" for k in rng.permutation(2 * tasks)[: tasks - 1]]
    return rng.permutation(["chief 0", *names]).tolist()


def _after(calls, job) -> list[SeenTask]:
    """The same job, where all tasks made these calls before; as it is where one has made none."""
    return [replace(one, calls=(*calls, *one.calls)) for one in job] if all(one.calls for one in job) else job


def _renamed(rng, job) -> list[SeenTask]:
    """The same job with its calls' names changed about; no two become one."""
    to = dict(zip(NAMES, rng.permutation(NAMES).tolist())) | {"train_step": str(rng.choice(["train_step", "step"]))}
    if any(call in ALIKE for one in job for call in one.calls):
        del to["train_step"]
    return [replace(one, calls=tuple(to.get(call, call) for call in one.calls)) for one in job]


def _waiting(calls) -> SeenTask:
    return SeenTask("", calls=tuple(calls), inside=True)


def _late(rng, length):
    """Everybody else waits for it in the strategy."""
    return SeenTask("", at="strategy"), SeenTask("", joined=False, at=str(rng.choice(["own code", "input"])))


def _back_too_soon(rng, length):
    return SeenTask("", at="strategy"), SeenTask("", state="returned", joined=False)


def _dead_too_soon(rng, length):
    return SeenTask("", at="strategy"), SeenTask("", state="ended", joined=False)


def _dead_between_calls(rng, length):
    return _waiting(USUAL[:length]), SeenTask("", state="ended", calls=USUAL[: length - 1])


def _dead_in_a_call(rng, length):
    within = _waiting(USUAL[:length])
    return within, replace(within, state="ended")


def _dead_in_its_own_call(rng, length):
    return _waiting(USUAL[:length]), replace(_waiting((*USUAL[: length - 1], OWN[length])), state="ended")


def _one_fewer(rng, length):
    return _waiting(USUAL[:length]), SeenTask("", state="returned", calls=USUAL[: length - 1])


def _in_its_own_call(rng, length):
    return _waiting(USUAL[:length]), _waiting((*USUAL[: length - 1], OWN[length]))


def _came_back_from_its_own_call(rng, length):
    """The sums went on with what they got; only the numbers of the calls are shifted."""
    place = int(rng.integers(1, length - 2))
    return _waiting(USUAL[:length]), _waiting((*USUAL[:place], OWN[length], *USUAL[place : length - 1]))


def _through_after_its_own_call(rng, length):
    """So it is no longer in it, nor in any other."""
    place = int(rng.integers(1, length - 2))
    calls = (*USUAL[:place], OWN[length], *USUAL[place : length - 2])
    return _waiting(USUAL[:length]), SeenTask("", state="returned", calls=calls)


def _twice_in_its_own_call(rng, length):
    place = int(rng.integers(1, length - 3))
    calls = (*USUAL[:place], OWN[length], OWN[length], *USUAL[place : length - 3])
    return _waiting(USUAL[:length]), SeenTask("", calls=calls, at=str(rng.choice(["own code", "input"])))


def _last_in_its_own_call(rng, length):
    """All others have returned."""
    return SeenTask("", state="returned", calls=USUAL[:length]), _waiting((*USUAL[:length], OWN[length]))


def _swapped(rng, length):
    calls, place = list(USUAL[:length]), int(rng.choice([1, 2, 3, 4]))
    calls[place : place + 2] = calls[place : place + 2][::-1]
    return _waiting(USUAL[:length]), _waiting(calls)


def _once_more(rng, length):
    """A call that the others made before, too."""
    return _waiting(USUAL[:length]), _waiting((*USUAL[: length - 1], "evaluate"))


def _another_first(rng, length):
    return _waiting(USUAL[:length]), _waiting(("evaluate", *USUAL[1:length]))


def _left_out(rng, length):
    """So it is through before the others."""
    calls = (*USUAL[:2], *USUAL[3:length])
    return _waiting(USUAL[:length]), SeenTask("", state="returned", calls=calls)


def _left_out_and_reads(rng, length):
    calls = (*USUAL[:4], *USUAL[5 : length - 1])
    return _waiting(USUAL[:length]), SeenTask("", calls=calls, at="input")


def _reads(rng, length):
    return _waiting(USUAL[:length]), SeenTask("", calls=USUAL[: length - 1], at="input")


def _computes(rng, length):
    return _waiting(USUAL[:length]), SeenTask("", calls=USUAL[: length - 1], at="own code")


def _through_but_for_one(rng, length):
    """It came back from its last call, too."""
    odd = SeenTask("", calls=USUAL[:length], at=str(rng.choice(["own code", "input"])))
    return replace(odd, state="returned", at=""), odd


def _waits_elsewhere(rng, length):
    """It is as the others but for where it stands; they are in no call, either."""
    here, there = rng.permutation(["own code", "input"]).tolist()
    return SeenTask("", calls=USUAL[:length], at=here), SeenTask("", calls=USUAL[:length], at=there)


def _not_joined_alone(rng, length):
    return SeenTask("", at="own code"), SeenTask("", joined=False, at="own code")


def _dead_at_the_end(rng, length):
    """All others have returned, after the same calls."""
    others = SeenTask("", state="returned", calls=USUAL[:length])
    return others, replace(others, state="ended")


def _before_its_first_call(rng, length):
    return _waiting(USUAL[: int(rng.integers(1, length))]), SeenTask("", at=str(rng.choice(["own code", "input"])))


def _through_without_a_call(rng, length):
    return _waiting(USUAL[: int(rng.integers(1, length))]), SeenTask("", state="returned")


def _dead_without_a_call(rng, length):
    return _waiting(USUAL[: int(rng.integers(1, length))]), SeenTask("", state="ended")


def _goes_ahead(rng, length):
    """Its last call is one that all others enter later."""
    place = int(rng.integers(0, 4))  # before "evaluate"
    calls = (*USUAL[:place], "evaluate")
    odd = _waiting(calls) if rng.integers(2) else SeenTask("", state="returned", calls=calls)
    return _waiting((*USUAL[:4], "evaluate", *USUAL[5:length])), odd


def _falls_back(rng, length):
    """It leaves its own call out, and the others are far ahead."""
    return _waiting(USUAL[:length]), SeenTask(
        "", calls=("train_step", "save"), at=str(rng.choice(["input", "own code"]))
    )


def _in_a_call_of_a_shorter_name(rng, length):
    return _waiting(USUAL[:length]), _waiting((*USUAL[: length - 1], ALIKE[0]))


def _came_back_from_a_call_of_a_longer_name(rng, length):
    place = int(rng.integers(1, length - 2))
    return _waiting(USUAL[:length]), _waiting((*USUAL[:place], ALIKE[1], *USUAL[place : length - 1]))


def _swapped_long_ago(rng, length):
    """Since then all made the same calls."""
    others, odd = _swapped(rng, length)
    since = rng.choice(USUAL, rng.integers(20, 40)).tolist()
    return [replace(one, calls=(*one.calls, *since)) for one in (others, odd)]


def _through_after_a_call_of_a_shorter_name(rng, length):
    """Its calls, one after the other, make a text with which the others' begins."""
    return _waiting((ALIKE[1], *USUAL[:length])), SeenTask("", state="returned", calls=USUAL[:1])


def _left_by_all_others(rng, length):
    """Their processes are gone, and it waits in a call of its own."""
    return replace(_waiting(USUAL[:length]), state="ended"), _waiting((*USUAL[: length - 1], OWN[length]))


_WAYS = (_late, _back_too_soon, _dead_too_soon, _dead_between_calls, _dead_in_a_call, _dead_in_its_own_call)
_WAYS += (_one_fewer, _in_its_own_call, _came_back_from_its_own_call, _last_in_its_own_call, _swapped, _once_more)
_WAYS += (_left_out, _left_out_and_reads, _reads, _computes, _another_first, _through_after_its_own_call)
_WAYS += (_twice_in_its_own_call, _through_but_for_one)
_WAYS += (_waits_elsewhere, _not_joined_alone, _dead_at_the_end, _before_its_first_call, _through_without_a_call)
_WAYS += (_dead_without_a_call, _goes_ahead, _falls_back)
_WAYS += (_in_a_call_of_a_shorter_name, _came_back_from_a_call_of_a_longer_name)
_WAYS += (_swapped_long_ago, _through_after_a_call_of_a_shorter_name, _left_by_all_others)
