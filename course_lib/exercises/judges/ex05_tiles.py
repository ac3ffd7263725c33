"""Exercise 05, q3: what a matrix takes in tiles."""

import math
from bisect import bisect_right

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex05 as probes
from course_lib.exercises.probes.cases import REFUSED
from course_lib.exercises.question import Target

question = question_maker.of("05_tpu")


def _stored(rows, columns, itemsize):
    """Bytes in whole tiles, with the better side along the 128."""
    return min(_tiled(rows, columns), _tiled(columns, rows)) * itemsize


def _taken(case, width):
    """Bytes of both kernels."""
    shapes = (case["inputs"], width), (width, case["outputs"])
    return sum(_stored(*shape, case["itemsize"]) for shape in shapes)


def _taken_alike(case, width):
    """With the same side of both kernels along the 128."""
    sides = case["inputs"], case["outputs"]
    ways = (lambda side: _tiled(side, width)), (lambda side: _tiled(width, side))
    return min(sum(map(way, sides)) for way in ways) * case["itemsize"]


def _taken_on_8(case, width):
    """With the width along the 8 in both."""
    return sum(_tiled(width, side) for side in (case["inputs"], case["outputs"])) * case["itemsize"]


def _widest(case, taken=_taken):
    """The largest width within the budget, which is a multiple of 8 as a tile is, or REFUSED."""
    most = case["budget_bytes"] // (case["itemsize"] * (case["inputs"] + case["outputs"]))  # without padding
    widths = range(8, most + 1, 8)
    fitting = bisect_right(widths, case["budget_bytes"], key=lambda width: taken(case, width))
    return widths[fitting - 1] if fitting else REFUSED


def _bytes_exact(answers, seed):
    for (rows, columns, itemsize), got in zip(probes.matrices(seed), answers["bytes"], strict=True):
        if got != (wanted := _stored(rows, columns, itemsize)):
            tile = 8 * 128 * itemsize
            if wanted <= 2 * tile:
                said = f"{got / tile:g} tiles, and {wanted // tile} are wanted"
            else:
                said = f"{got:,} B, and the numbers alone are {rows * columns * itemsize:,} B"
            return f"({rows}, {columns}) of {itemsize} B each: yours is {said}"
    return True


def _bytes_are(wrong):
    """Recognise wrong(rows, columns, itemsize) as the bytes of every matrix."""
    return lambda answers, seed: answers["bytes"] == [wrong(*matrix) for matrix in probes.matrices(seed)]


def _widths_are(wrong):
    """Recognise right bytes, and wrong(the right width) as every width."""

    def recognise(answers, seed):
        wanted = [_widest(case) for case in probes.budgets(seed)]
        return _bytes_exact(answers, seed) is True and all(
            got == wrong(width) for got, width in zip(answers["widths"], wanted, strict=True) if width != REFUSED
        )

    return recognise


def _widths_of(wrong):
    """Recognise right bytes, and wrong(case) as every width or refusal."""
    return lambda answers, seed: (
        _bytes_exact(answers, seed) is True and answers["widths"] == [wrong(case) for case in probes.budgets(seed)]
    )


def _widths_as(wrong):
    """Recognise right bytes, and wrong(case) as every width, or a refusal where that is too narrow or none fits."""

    def recognise(answers, seed):
        pairs = zip(probes.budgets(seed), answers["widths"], strict=True)
        return _bytes_exact(answers, seed) is True and all(
            got == wrong(case) or got == REFUSED and (wrong(case) < 8 or _widest(case) == REFUSED)
            for case, got in pairs
        )

    return recognise


def _from_above(case):
    """The first width that fits, down by eights from the widest that would without padding."""
    most = case["budget_bytes"] // (case["itemsize"] * (case["inputs"] + case["outputs"]))
    return next((width for width in range(most, 7, -8) if _taken(case, width) <= case["budget_bytes"]), REFUSED)


def _refused_without_tiles(exactly):
    """The widest, or 8 where none fits, and REFUSED where the numbers of a width of 8 do not.

    exactly  they may take exactly the budget
    """

    def width(case):
        room = case["budget_bytes"] - 8 * (case["inputs"] + case["outputs"]) * case["itemsize"]
        if room < 0 or room == 0 and not exactly:
            return REFUSED
        return 8 if _widest(case) == REFUSED else _widest(case)

    return width


def _kept_by_shape(answers, seed):
    """Every matrix has the bytes of the first one with its sides."""
    kept, matrices = {}, probes.matrices(seed)
    for rows, columns, itemsize in matrices:
        kept.setdefault((rows, columns), _stored(rows, columns, itemsize))
    return answers["bytes"] == [kept[matrix[:2]] for matrix in matrices]


def _whole_tiles(case):
    """With the width along the 128 in both kernels, or of such widths alone."""
    width = _widest(case)
    return 0 if width == REFUSED else width // 128 * 128


def _whole_tiles_from_128(case):
    return _whole_tiles(case) or _widest(case)


def _cut_off(answers, seed):
    """The widths are right up to one beyond which none goes."""
    widths, wanted = answers["widths"], [_widest(case) for case in probes.budgets(seed)]
    most = max((width for width in widths if width != REFUSED), default=0)
    expected = [width if width == REFUSED else min(width, most) for width in wanted]
    return _bytes_exact(answers, seed) is True and widths == expected != wanted


def _in_32_bits(answers, seed):
    """The bytes are right but for whole multiples of 4 GiB, and some are not."""
    matrices = probes.matrices(seed)
    off = [got - _stored(*matrix) for matrix, got in zip(matrices, answers["bytes"], strict=True)]
    return any(off) and all(by % 2**32 == 0 for by in off)


def _side_that_lacks_less(columns_first):
    """The bytes with that side along the 128 which is nearer to its next multiple."""

    def stored(rows, columns, itemsize):
        lacking = -rows % 128 - -columns % 128
        columns_up = lacking > 0 or lacking == 0 and columns_first
        return (_tiled(rows, columns) if columns_up else _tiled(columns, rows)) * itemsize

    return stored


def _tiled(by_8, by_128, up=math.ceil):
    return 8 * up(by_8 / 8) * 128 * up(by_128 / 128)


def _search(case):
    tiles = case["budget_bytes"] / _tile(case)
    budget = f"{tiles:.5g} tiles" if _is_small(case) else f"{case['budget_bytes']:,} B"
    return f"inputs {case['inputs']}, outputs {case['outputs']}, {case['itemsize']} B each, budget {budget}: yours "


def _tile(case):
    return 8 * 128 * case["itemsize"]


def _is_small(case):
    return case["budget_bytes"] <= 4 * _tile(case)


def _each_width(detail):
    """A target over the searches: detail(case, width, wanted) says what is wrong, or nothing."""

    def holds(answers, seed):
        for case, got in zip(probes.budgets(seed), answers["widths"], strict=True):
            if wrong := detail(case, got, _widest(case)):
                return _search(case) + wrong
        return True

    return holds


def _another_width(case, got, wanted):
    if REFUSED not in (got, wanted) and got != wanted:
        if _is_small(case):
            takes, wants = (_taken(case, width) // _tile(case) for width in (got, wanted))
            return f"is {got:g} and takes {takes} tiles; {wanted} takes {wants}"
        return f"is {got:,}, and takes {_taken(case, got):,} B"


def _width_or_error(case, got, wanted):
    if (got == REFUSED) != (wanted == REFUSED):
        return f"raises ValueError, and {wanted} fits" if got == REFUSED else f"is {got:g}, and none fits"


_REFUSED = forms.words(REFUSED)
TILES = question(
    name="q3",
    title="What a matrix takes in tiles",
    asks_for=("stored_bytes", "widest"),
    probe=probes.probe_tiles,
    form={"bytes": [forms.number], "widths": [forms.either(forms.number, _REFUSED)]},
    targets=(
        Target("every matrix's bytes as the chip stores it, to the byte", _bytes_exact),
        Target("the largest width with which two kernels stay within the budget", _each_width(_another_width)),
        Target("a ValueError where no width of 8 or more does, and only there", _each_width(_width_or_error)),
    ),
    recognise={
        "no tiles": _bytes_are(lambda rows, columns, itemsize: rows * columns * itemsize),
        "rounded as a whole": _bytes_are(
            lambda rows, columns, itemsize: math.ceil(rows * columns / 1024) * 1024 * itemsize
        ),
        "one way round": _bytes_are(lambda rows, columns, itemsize: _tiled(rows, columns) * itemsize),
        "other way round": _bytes_are(lambda rows, columns, itemsize: _tiled(columns, rows) * itemsize),
        "larger side": _bytes_are(
            lambda rows, columns, itemsize: max(_tiled(rows, columns), _tiled(columns, rows)) * itemsize
        ),
        "numbers, not bytes": _bytes_are(lambda rows, columns, itemsize: _stored(rows, columns, 1)),
        "four bytes each": _bytes_are(lambda rows, columns, itemsize: _stored(rows, columns, 4)),
        "longer side": _bytes_are(
            lambda rows, columns, itemsize: _tiled(min(rows, columns), max(rows, columns)) * itemsize
        ),
        "in 32 bits": _in_32_bits,
        "side that lacks less": lambda answers, seed: any(
            _bytes_are(_side_that_lacks_less(columns_first))(answers, seed) for columns_first in (True, False)
        ),
        "kept by its sides": _kept_by_shape,
        "four bytes in the search": _widths_of(lambda case: _widest(case | {"itemsize": 4})),
        "turned alike": _widths_of(lambda case: _widest(case, _taken_alike)),
        "width on the 8": _widths_of(lambda case: _widest(case, _taken_on_8)),
        "multiples of 128": lambda answers, seed: (
            _widths_as(_whole_tiles)(answers, seed) or _widths_of(_whole_tiles_from_128)(answers, seed)
        ),
        "no tiles for the width": _widths_as(
            lambda case: case["budget_bytes"] // (case["itemsize"] * (case["inputs"] + case["outputs"]))
        ),
        "not from a multiple of 8": _widths_of(_from_above),
        "refused without tiles": lambda answers, seed: any(
            _widths_of(_refused_without_tiles(exactly))(answers, seed) for exactly in (True, False)
        ),
        "looks no further": _cut_off,
        "one too many": _widths_are(lambda width: width + 1),
        "one too few": _widths_are(lambda width: width - 1),
    },
)
