"""Schematics of a choice: where answers lead, and the whole tree of them. Needs matplotlib; used in notebooks/10."""

from collections.abc import Mapping, Sequence

from course_lib.show.board import WIDTH, Board
from course_lib.show.figure import COLOURS, FAINT, Figure, styled

_LINE = 2.2  # of a tree, in units


@styled
def path(steps: Sequence[tuple[str, str]], ends: Sequence[str], caption: str) -> Figure:
    """Questions from top to bottom, each with the answer taken, and below them the boxes that they lead to.

    steps  (question, answer)
    ends   what to do, in order
    """
    row, pitch, floor = 2.3, 4.2, 2.3 * len(steps)
    board = Board(floor + pitch * len(ends) + 2)
    for number, (question, answer) in enumerate(steps):
        board.text(0.5, row * (number + 0.5), question, ha="left")
        board.text(WIDTH - 0.5, row * (number + 0.5), answer, ha="right", weight="bold")
        board.line([(0.5, row * (number + 1)), (WIDTH - 0.5, row * (number + 1))], FAINT)
    for number, end in enumerate(ends):
        top = floor + 2 + pitch * number
        board.arrow((WIDTH / 2, top - (1.4 if number else 1.8)), (WIDTH / 2, top), colour=COLOURS[0])
        board.box(0.5, top, WIDTH - 1, pitch - 1.4, f"{number + 1}  {end}", COLOURS[0], fill=0.18)
    return board.figure(caption)


@styled
def tree(asked: Mapping[str, object], caption: str) -> Figure:
    """Questions that branch by their answers, and at the ends what to do.

    asked  {question: {answer: what to do, or another such mapping}}
    """
    board = Board(_LINE * _lines(asked) + 0.5)
    ((question, answers),) = asked.items()
    board.text(0.5, _LINE / 2, question, ha="left", weight="bold")
    _branch(board, answers, 1.5, _LINE)
    return board.figure(caption)


def _lines(asked: object) -> int:
    """How many lines a tree takes: one for each answer, and one for the first question."""
    if isinstance(asked, str):
        return 1
    (answers,) = asked.values()
    return 1 + sum(_lines(below) for below in answers.values())


def _branch(board: Board, answers: Mapping[str, object], x: float, top: float) -> float:
    """Draw a question's answers, each with what is below it; return where the next line begins."""
    begin = end = top - _LINE / 4
    for answer, below in answers.items():
        middle = top + _LINE / 2
        end = middle
        board.line([(x, middle), (x + 1.2, middle)], colour=COLOURS[0])
        further = {} if isinstance(below, str) else below
        board.text(x + 1.7, middle, f"{answer}: {below if isinstance(below, str) else next(iter(below))}", ha="left")
        top += _LINE
        for answers_below in further.values():
            top = _branch(board, answers_below, x + 2.7, top)
    board.line([(x, begin), (x, end)], colour=COLOURS[0])
    return top
