"""Exercise 05, q5: how many chips are worth it."""

import math

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex05_slices as probes
from course_lib.exercises.question import Target

question = question_maker.of("05_tpu")


def _rows_for(case, sent):
    """The fewest rows whose backward pass takes as long as these bytes."""
    return max(1, math.ceil(_rows_and_parts(case, sent)))


def _rows_and_parts(case, sent):
    backward = 2 / 3 * case["row_flops"] / case["flops_per_second"]  # seconds of a row
    return sent / case["sent_per_second"] / backward


def _plan(case, chips):
    """The bytes that each of so many chips sends, and the fewest rows that hide the sending."""
    return {"sent_bytes": _sent(case, chips), "chip_batch": _rows_for(case, _sent(case, chips))}


def _sent(case, chips):
    return 2 * (chips - 1) * case["parameters"] * case["gradient_bytes"] / chips


def _plan_is(part, at_most_off):
    """A target: this figure is right for the slice that was chosen, whichever it is."""

    def holds(answers, seed):
        for case, got in zip(probes.trainings(seed), answers["slices"], strict=True):
            wanted = _plan(case, got["chips"])[part]
            if abs(got[part] - wanted) > at_most_off:
                shown = f"{_case_words(case)} on {_chips_words(got)}: yours is {got[part]:,}"
                return f"{shown}, and {wanted:g} is wanted" if _is_tiny(case) and wanted < 100 else shown
        return True

    return holds


def _is_tiny(case):
    return case["parameters"] < 10


def _case_words(case):
    if not _is_tiny(case):
        return f"{case['parameters']:,} parameters"
    return "best_slice({})".format(", ".join(f"{key}={value}" for key, value in case.items()))


def _chips_words(got):
    return "1 chip" if got["chips"] == 1 else f"{got['chips']} chips"


def _fitting(case):
    return [n for n in case["slices"] if n * _plan(case, n)["chip_batch"] <= case["largest_batch"]]


def _most_chips(answers, seed):
    for case, got in zip(probes.trainings(seed), answers["slices"], strict=True):
        if got["chips"] != max(_fitting(case)):
            batch = f"a global batch of {got['chips'] * got['chip_batch']:,}"
            if _is_tiny(case):
                return f"{_case_words(case)} has {_chips_words(got)} and {batch}; {max(_fitting(case))} are wanted"
            return f"yours has {_chips_words(got)} and {batch}; {case['largest_batch']:,} rows are allowed"
    return True


def _figures_are(part, wrong):
    """Recognise wrong(case, chips, the right figure) as this figure of every slice with more than one chip.

    Some figure of these must be wrong: where all gradients are float32, four bytes each are right.
    """

    def recognise(answers, seed):
        if _plan_is(part, 1 if part == "sent_bytes" else 0)(answers, seed) is True:
            return False
        pairs = zip(probes.trainings(seed), answers["slices"], strict=True)
        several = [(case, got) for case, got in pairs if got["chips"] > 1]
        far = [abs(got[part] - wrong(case, got["chips"], _plan(case, got["chips"])[part])) for case, got in several]
        return bool(far) and all(distance <= 1 + 1e-9 * got[part] for distance, (_, got) in zip(far, several))

    return recognise


def _whole_bytes(answers, seed):
    right = _plan_is("sent_bytes", 1)(answers, seed)
    for case, got in zip(probes.trainings(seed), answers["slices"], strict=True):
        if right is True and got["sent_bytes"] % 1:
            return f"{_case_words(case)} on {_chips_words(got)}: yours is {got['sent_bytes']:,}, which is not rounded"
    return right


def _rows_are(wrong):
    """Recognise right bytes, and wrong(case) as the rows of every slice with more than one chip."""

    def recognise(answers, seed):
        pairs = zip(probes.trainings(seed), answers["slices"], strict=True)
        several = [(case, got) for case, got in pairs if got["chips"] > 1]
        right_bytes = _plan_is("sent_bytes", 1)(answers, seed) is True
        return (
            right_bytes
            and bool(several)
            and all(
                abs(got["chip_batch"] - wrong(case)) <= (0 if _is_tiny(case) else 1)  # that far a rounding may go
                for case, got in several
            )
        )

    return recognise


def _with_right_bytes(answers, seed):
    """Each case with what was answered and the fewest rows of that slice; nothing where some bytes are wrong."""
    if _plan_is("sent_bytes", 1)(answers, seed) is not True:
        return []
    pairs = zip(probes.trainings(seed), answers["slices"], strict=True)
    return [(case, got, _plan(case, got["chips"])["chip_batch"]) for case, got in pairs]


def _rows_end(answers, seed):
    """The rows are right up to a largest number, beyond which none go."""
    rows = [(got["chip_batch"], wanted) for _, got, wanted in _with_right_bytes(answers, seed)]
    most = max((got for got, _ in rows), default=0)
    return most > 100 and all(got == min(wanted, most) for got, wanted in rows) and any(got < w for got, w in rows)


def _little_more_left_out(answers, seed):
    """A row is missing where less than a hundredth of one is needed beside the whole ones, and only there."""
    rows = [
        (wanted - got["chip_batch"], wanted - _rows_and_parts(case, _sent(case, got["chips"])) > 0.99 and wanted > 1)
        for case, got, wanted in _with_right_bytes(answers, seed)
    ]
    return any(short for short, _ in rows) and all(short == 0 or short == 1 and little for short, little in rows)


def _float32(answers, seed):
    """The bytes are off, by no more than a float32 number is."""
    pairs = zip(probes.trainings(seed), answers["slices"], strict=True)
    off = [
        abs(got["sent_bytes"] / max(1, _plan(case, got["chips"])["sent_bytes"]) - 1)
        for case, got in pairs
        if got["chips"] > 1
    ]
    return _plan_is("sent_bytes", 1)(answers, seed) is not True and max(off, default=1) < 1e-6


def _stops_at_one_too_large(answers, seed):
    """The slices are the largest, or the last ones, before another in the list that is too large; some are wrong."""
    chips, cases = [got["chips"] for got in answers["slices"]], probes.trainings(seed)
    rules = [(of, first) for of in (max, lambda seen: seen[-1]) for first in (True, False)]
    fits = any(chips == [of(_seen(case, first)) for case in cases] for of, first in rules)
    return fits and _most_chips(answers, seed) is not True


def _seen(case, first_taken):
    """The slices that somebody takes who stops at one that is too large.

    first_taken  the list's first one is taken even so; else those before the first that fits are left out
    """
    fitting, seen = _fitting(case), []
    for chips in case["slices"]:
        if chips in fitting or first_taken and not seen:
            seen.append(chips)
        elif seen:
            break
    return seen


_SLICE = dict.fromkeys(("chips", "sent_bytes", "chip_batch"), forms.number)
SLICES = question(
    name="q5",
    title="How many chips are worth it",
    asks_for=("best_slice",),
    probe=probes.probe_slices,
    form={"slices": [_SLICE | {str: forms.anything}]},
    targets=(
        Target("the bytes that each chip sends for the gradients, to the byte", _whole_bytes),
        Target("the fewest rows on a chip that hide the sending", _plan_is("chip_batch", 0)),
        Target("the largest slice whose global batch is allowed", _most_chips),
    ),
    recognise={
        "one chip sends": lambda answers, seed: any(
            got["chips"] == 1 and got["sent_bytes"] > 0 for got in answers["slices"]
        ),
        "half an all-reduce": _figures_are("sent_bytes", lambda case, chips, sent: sent / 2),
        "whole buffer twice": _figures_are("sent_bytes", lambda case, chips, sent: sent * chips / (chips - 1)),
        "every trip whole": _figures_are("sent_bytes", lambda case, chips, sent: sent * chips),
        "numbers, not bytes": _figures_are("sent_bytes", lambda case, chips, sent: sent / case["gradient_bytes"]),
        "always float32": _figures_are("sent_bytes", lambda case, chips, sent: sent / case["gradient_bytes"] * 4),
        "bits": _figures_are("sent_bytes", lambda case, chips, sent: sent * 8),
        "many chips' time": _rows_are(lambda case: _rows_for(case, 2 * case["parameters"] * case["gradient_bytes"])),
        "largest slice's bytes": _figures_are("sent_bytes", lambda case, chips, sent: _sent(case, max(case["slices"]))),
        "stops too early": _stops_at_one_too_large,
        "float32": _float32,
        "search ends": _rows_end,
        "a little more": _little_more_left_out,
        "global batch returned": _figures_are("chip_batch", lambda case, chips, rows: rows * chips),
        "whole limit used": _figures_are("chip_batch", lambda case, chips, rows: case["largest_batch"] // chips),
    },
)
