"""Which task a hang is about, and why: rules over what each task looks like, the surest first.

A job that hangs waits for somebody. The rules look for the task that the others wait for, or that waits for what the
others never do; each names what it saw. Where none holds, the answer is that the cause is not known.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.hangs.evidence import Evidence, Frame
from course_lib.hangs.recorder import CollectiveCall


@dataclass(frozen=True)
class HangCause:
    """What a hang is about.

    cause   a key of CAUSES
    task    the one that differs, or "" where it cannot be known
    seen    what says so, as a sentence
    """

    cause: str
    task: str
    seen: str

    @property
    def remedy(self) -> str:
        return CAUSES[self.cause]

    def __str__(self) -> str:
        return f"{self.seen} {self.remedy}"


CAUSES = {
    "stopped": "Let it go on (kill -CONT), or find who stopped it: a debugger, Ctrl-Z, the batch system.",
    "lost": "Look at its last lines and at the system's log: memory that ran out ends a process without a word.",
    "other cluster": "Give every task the same list of addresses in the same order, and its own place in it.",
    "not started": "Let each task make its strategy first: downloads and preparations come after it.",
    "unreachable": "Open the port between the two, both ways, and name addresses that each reaches.",
    "data ended": "Give every task as many batches: repeat and count steps, or drop what is left over.",
    "entered alone": "Let every task make this call: a save, an evaluation or a metric is a collective, too.",
    "other order": "Let every task make the same collectives of the same shapes in the same order.",
    "input": "Look at what its input waits for: a file, a queue, a generator.",
    "lock": "Look at who holds what it waits for; no other task can let it go.",
    "own code": "Look at this line: the others are in a collective and wait for it.",
    "unknown": "Compare the stacks below.",
}

JOINING = {
    ("context.py", "ensure_initialized"),
    ("context.py", "enable_collective_ops"),
    ("distributed.py", "initialize"),
    ("server_lib.py", "__init__"),
}
INPUT = {"iterator_ops.py", "script_ops.py", "data_adapter_utils.py", "input_lib.py", "from_generator_op.py"}
LOCKS = {("threading.py", "acquire"), ("threading.py", "wait"), ("threading.py", "join"), ("queue.py", "get")}
LOCKS |= {("queue.py", "put"), ("threading.py", "_wait_for_tstate_lock"), ("threading.py", "__enter__")}


def diagnose(tasks: Sequence[Evidence]) -> HangCause:
    """The task that differs, and the likeliest cause.

    tasks  all of a job's, as they looked within a few seconds
    """
    for rule in (_stopped, _sequence, _lost, _joining, _finished, _behind, _unreachable, _input):
        if found := rule(tasks):
            return found
    named = "; ".join(f"{one.task} at {one.own or one.now or 'an unknown place'}" for one in tasks)
    return HangCause("unknown", "", f"No task stands out: {named}.")


def _stopped(tasks: Sequence[Evidence]) -> HangCause | None:
    for one in tasks:
        if one.state == "stopped":
            return HangCause("stopped", one.task, f"{one.task} was stopped by a signal; the others wait for it.")
    return None


def _lost(tasks: Sequence[Evidence]) -> HangCause | None:
    for one in tasks:
        if one.state == "ended":
            return HangCause("lost", one.task, f"{one.task} has ended without returning{_after(one)}.")
    return None


def _joining(tasks: Sequence[Evidence]) -> HangCause | None:
    """Some stand in front of the first collective: they wait for the whole cluster to come."""
    joining = [one for one in tasks if _joins(one)]
    if not joining:
        return None
    clusters = {one.task: one.cluster.partition(" of ") for one in joining if one.cluster}
    lists = Counter(rest for _, _, rest in clusters.values())
    if len(lists) > 1:
        usual = lists.most_common(1)[0][0]
        others = [task for task, (_, _, rest) in clusters.items() if rest != usual]
        misplaced = [task for task, (name, _, _) in clusters.items() if name != task]
        other = (misplaced if misplaced and len(clusters) == 2 else others)[0]
        usual = next(rest for _, _, rest in clusters.values() if rest != clusters[other][2])
        return HangCause("other cluster", other, f"{other} waits for {clusters[other][2]}; the others for {usual}.")
    names = Counter(name for name, _, _ in clusters.values())
    for task, (name, _, _) in clusters.items():
        if names[name] > 1 and name != task:
            return HangCause("other cluster", task, f"{task} calls itself {name}, and so does another task.")
    for one in tasks:
        if one not in joining and one.state == "running":
            place = _place(one)
            return HangCause("not started", one.task, f"{one.task} has not joined the cluster: it is {place}.")
    for one in tasks:
        if one.state == "returned":
            return HangCause("not started", one.task, f"{one.task} returned without joining the cluster.")
    return _unreachable(tasks) or HangCause("unknown", "", "All tasks wait for the cluster to form.")


def _finished(tasks: Sequence[Evidence]) -> HangCause | None:
    """Some have returned, and others are in a collective: was it one too many, or theirs alone?"""
    done = [one for one in tasks if one.state == "returned"]
    if not done:
        return None
    waiting = [one for one in tasks if _inside(one)]
    for one in filter(lambda one: one.waiting, waiting):
        known = {entered.text for other in tasks if other is not one for entered in other.collectives}
        if one.waiting.text not in known and len(waiting) == 1:
            return HangCause("entered alone", one.task, f"{one.task} is in a call that no other makes: {_call(one)}.")
    if waiting:
        return HangCause(
            "data ended",
            done[0].task,
            f"{done[0].task} returned{_after(done[0])}; {waiting[0].task} is in {_call(waiting[0])}.",
        )
    others = [one for one in tasks if one.state == "running"]
    named = ", ".join(f"{one.task} is {_place(one)}" for one in others)
    return HangCause(_own_cause(others[0]), others[0].task, f"{done[0].task} returned; {named}.") if others else None


def _sequence(tasks: Sequence[Evidence]) -> HangCause | None:
    """The first collective that is not the same everywhere."""
    by_number = {one.task: {entered.number: entered for entered in one.collectives} for one in tasks}
    for number in sorted(set().union(*by_number.values())):
        present = {task: entered[number].text for task, entered in by_number.items() if number in entered}
        if len(set(present.values())) > 1:
            other = _odd(present, by_number, number)
            usual = next(text for task, text in present.items() if text != present[other])
            if _alone(other, present[other], usual, by_number):
                seen = f"{other} is in a call that no other makes: {present[other]}."
                return HangCause("entered alone", other, seen)
            seen = f"Call {number} with collectives is {present[other]} on {other} and {usual} elsewhere."
            return HangCause("other order", other, seen)
    return None


def _odd(present: dict[str, str], by_number: dict[str, dict[int, CollectiveCall]], number: int) -> str:
    """The task whose call is the rarer one; of two, the one that departs from what it did before."""
    counts = Counter(present.values())
    rarest = min(counts.values())
    if rarest < max(counts.values()):
        return next(task for task, text in present.items() if counts[text] == rarest)
    before = Counter(entered.text for calls in by_number.values() for at, entered in calls.items() if at < number)
    return min(present, key=lambda task: (before[present[task]], task))


def _alone(task: str, text: str, usual: str, by_number: dict[str, dict[int, CollectiveCall]]) -> bool:
    """Whether no other task makes this call at any time, not even with other collectives in it."""
    others = [entered.text for name, calls in by_number.items() if name != task for entered in calls.values()]
    return text.partition(":")[0] != usual.partition(":")[0] and text not in others


def _behind(tasks: Sequence[Evidence]) -> HangCause | None:
    """The others are in a collective, and one is not."""
    inside = [one for one in tasks if _inside(one)]
    outside = [one for one in tasks if one not in inside and one.state == "running"]
    if not inside or not outside:
        return None
    one = min(outside, key=lambda task: task.entered)
    return HangCause(
        _own_cause(one), one.task, f"{one.task} is {_place(one)}; {inside[0].task} is in {_call(inside[0])}."
    )


def _unreachable(tasks: Sequence[Evidence]) -> HangCause | None:
    """A connection that gets no answer: what was sent is sent again and again."""
    at = {address: task for one in tasks for task, address in one.addresses.items()}
    hosts = Counter(address.rpartition(":")[0] for address in at)
    at |= {host: task for address, task in at.items() if hosts[host := address.rpartition(":")[0]] == 1}
    silent = [
        (one.task, at.get(other) or at.get(other.rpartition(":")[0], other), tries)
        for one in tasks
        for state, other, unsent, tries in one.links
        if state == "no answer yet" or (unsent and tries > 1)
    ]
    if not silent:
        return None
    ends = Counter(end for link in silent for end in set(link[:2]))  # a bad machine is an end of each bad link
    task, other, tries = max(silent, key=lambda link: (max(ends[link[0]], ends[link[1]]), link[2]))
    worst = max(task, other, key=lambda end: (ends[end], end))
    return HangCause("unreachable", worst, f"{task} gets no answer from {other}, after {tries} tries.")


def _input(tasks: Sequence[Evidence]) -> HangCause | None:
    """All are in the same call, which also reads the input: one of them waits for its own."""
    reading = [one for one in tasks if _generator(one)]
    if reading and len(reading) < len(tasks):
        frame = _generator(reading[0])
        return HangCause("input", reading[0].task, f"{reading[0].task} waits for its input, at {frame}.")
    waiting = [one for one in tasks if any(name.startswith(WAITS_FOR_FILES) for name in one.waits)]
    if waiting and len(waiting) < len(tasks):
        name = next(name for name in waiting[0].waits if name.startswith(WAITS_FOR_FILES))
        return HangCause(
            "input", waiting[0].task, f"{waiting[0].task} waits for a file or a pipe (in the kernel's {name})."
        )
    return None


WAITS_FOR_FILES = (
    "pipe_read",
    "anon_pipe_read",
    "wait_for_partner",
    "fifo_open",
    "nfs_",
    "rpc_wait",
    "fuse_",
    "io_schedule",
    "folio_wait",
)


def _generator(one: Evidence) -> Frame | None:
    """The program's own line in a thread of its input, below TensorFlow's call of Python."""
    for thread in one.threads[1:]:
        if any(frame.file.endswith("script_ops.py") for frame in thread):
            return next((frame for frame in thread if not frame.framework and not frame.course), None)
    return None


def _joins(one: Evidence) -> bool:
    return any((frame.file.rpartition("/")[2], frame.function) in JOINING for frame in one.stack)


def _inside(one: Evidence) -> bool:
    """In a collective; or in JAX, whose calls are not recorded, waiting for a result."""
    return (
        one.waiting is not None
        or one.state == "running"
        and any("/jax/" in frame.file or "/jaxlib/" in frame.file for frame in one.stack[:6])
    )


def _own_cause(one: Evidence) -> str:
    """Why a task that is in no collective does not go on."""
    return "input" if _reads(one) or _generator(one) else "lock" if _locks(one) else "own code"


def _reads(one: Evidence) -> bool:
    upper = one.stack[: one.stack.index(one.own)] if one.own else one.stack
    return any(frame.file.rpartition("/")[2] in INPUT for frame in upper)


def _locks(one: Evidence) -> bool:
    in_program = one.stack[:1] == (one.own,)  # a lock's own code is not Python
    return (
        in_program
        and one.main_wait.startswith("futex")
        or any((frame.file.rpartition("/")[2], frame.function) in LOCKS for frame in one.stack[:3])
    )


def _place(one: Evidence) -> str:
    if reading := _generator(one):
        return f"in its input, at {reading}"
    return f"at {one.own}" if one.own else f"in {one.now}" if one.now else "at a place that is not known"


def _call(one: Evidence) -> str:
    at = f", called at {one.own}" if one.own else ""
    return (one.waiting.text if one.waiting else one.now or "a call of JAX") + at


def _after(one: Evidence) -> str:
    if one.step is not None:
        return f" after step {one.step}"
    return f" after {one.entered} collectives" if one.entered else ""
