"""Which small changes of a published answer does its check not refuse?

`python tests/answer_mutants.py` tries every change of the quick questions and a sample of those that take long, and
prints a table; `python tests/answer_mutants.py 09_mixed_precision q1 --sample 40 --seed 7` is a part. A change that is
the same function stands in answer_mutants.toml with the reason. With --sizes the edits are others: each whole number
that a function is given counts as 1,000 at most, and of each list the first 100 items count. What passes shows a size
that the check never draws, which may be as it should: its text says which sizes there are.
"""

import argparse
import ast
import contextlib
import copy
import dataclasses
import io
import json
import os
import random
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from course_lib import devices
from course_lib.exercises import judges
from course_lib.exercises.ask import ask
from course_lib.exercises.judge import judge, same
from course_lib.exercises.question import Question
from course_lib.table import Table

SAME_FILE = Path(__file__).with_suffix(".toml")
SECONDS = 60  # for one check of a mutant; those that take long have ten times as many
LISTS = ("list", "tuple", "Sequence", "np.ndarray")  # how annotations of lists begin
PASSED, NAMED, UNNAMED, HUNG = "passed", "named", "not named", "hung"

COMPARED = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
COMPUTED = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.FloorDiv),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.MatMult: (),
}
NAMES = [("min", "max"), ("sum", "max"), ("sum", "mean"), ("reduce_sum", "reduce_mean"), ("ceil", "floor")]
NAMES += [("all", "any"), ("reduce_min", "reduce_max"), ("append", "extend"), ("argmin", "argmax"), ("mean", "median")]
NAMES += [("zeros_like", "ones_like"), ("zeros", "ones"), ("minimum", "maximum"), ("cumsum", "cumprod")]
NAMES += [("float32", "float16"), ("float64", "float32"), ("log2", "log"), ("var", "std")]
OTHER_NAME = defaultdict(list)
for one, other in NAMES:
    OTHER_NAME[one].append(other)
    OTHER_NAME[other].append(one)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A published answer with one edit.

    change  "before -> after", the statement or expression that differs, as Python writes it
    source  the whole answer
    """

    change: str
    source: str


def mutants(source: str) -> list[Mutant]:
    """Every single edit of an answer, in the order of its code; each differs from the answer and from the others."""
    tree = _Bare().visit(ast.parse(source))
    found, seen = [], {ast.unparse(tree)}
    for place, node in enumerate(ast.walk(tree)):
        for number in range(len(list(_edits(node)))):
            other = copy.deepcopy(tree)
            edited = [*ast.walk(other)][place]
            [*_edits(edited)][number]()
            text = ast.unparse(ast.fix_missing_locations(other))
            if text not in seen:
                seen.add(text)
                found.append(Mutant(_difference(ast.unparse(tree), text), text))
    return found


def cut_sizes(source: str) -> list[Mutant]:
    """The answer with one argument cut: a whole number at 1,000, a list or an array after 100 items."""
    found = []
    for place, function in enumerate(ast.parse(source).body):
        for argument in function.args.args if isinstance(function, ast.FunctionDef) else ():
            kind = ast.unparse(argument.annotation) if argument.annotation else ""
            cut = f"min({argument.arg}, 1000)" if kind == "int" else f"{argument.arg}[:100]"
            if kind == "int" or kind.startswith(LISTS):
                tree = ast.parse(source)
                tree.body[place].body.insert(
                    ast.get_docstring(function) is not None, ast.parse(f"{argument.arg} = {cut}")
                )
                found.append(Mutant(f"{function.name}: {argument.arg} -> {cut}", ast.unparse(tree)))
    return found


class _Bare(ast.NodeTransformer):
    """Without what no call meets: annotations of functions, docstrings."""

    def visit_FunctionDef(self, node):
        node.returns = None
        return self.visit_ClassDef(node)

    def visit_ClassDef(self, node):
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)

    def visit_arg(self, node):
        node.annotation = None
        return node


def _difference(before: str, after: str) -> str:
    """The lines that differ: "before -> after"."""
    old, new = before.splitlines(), after.splitlines()
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    return " -> ".join("; ".join(map(str.strip, lines)) or "nothing" for lines in (old, new))


def _edits(node: ast.AST) -> Iterator:
    """Functions that each change this node in one way."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in COMPARED[type(operator)]:
                yield lambda place=place, other=other: node.ops.__setitem__(place, other())
    elif isinstance(node, ast.BinOp):
        for other in COMPUTED.get(type(node.op), ()):
            yield lambda other=other: setattr(node, "op", other())
    elif isinstance(node, ast.BoolOp):
        yield lambda: setattr(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.Constant):
        for value in _other_values(node.value):
            yield lambda value=value: setattr(node, "value", value)
    elif isinstance(node, ast.AugAssign):
        for other in COMPUTED.get(type(node.op), ()):
            yield lambda other=other: setattr(node, "op", other())
    elif isinstance(node, (ast.Tuple, ast.List)) and isinstance(node.ctx, ast.Load):
        yield from _fewer_or_swapped(node.elts)
    elif isinstance(node, ast.Dict):
        for place in range(len(node.keys)):
            yield lambda place=place: (node.keys.__delitem__(place), node.values.__delitem__(place))
        for place in range(len(node.keys) - 1):
            yield lambda place=place: node.values.__setitem__(
                slice(place, place + 2), node.values[place : place + 2][::-1]
            )
    elif isinstance(node, ast.Slice):
        for bound in ("lower", "upper", "step"):
            if getattr(node, bound) is not None:
                yield lambda bound=bound: setattr(node, bound, None)
    elif isinstance(node, ast.comprehension):
        for place in range(len(node.ifs)):
            yield lambda place=place: node.ifs.__delitem__(place)
    elif isinstance(node, ast.Attribute):
        for other in OTHER_NAME[node.attr]:
            yield lambda other=other: setattr(node, "attr", other)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        for other in OTHER_NAME[node.id]:
            yield lambda other=other: setattr(node, "id", other)
    elif isinstance(node, ast.Call):
        yield from _fewer_or_swapped(node.args)
        for place in range(len(node.keywords)):
            yield lambda place=place: node.keywords.__delitem__(place)
    yield from _instead(node)
    yield from _without_statements(node)


def _fewer_or_swapped(items: list) -> Iterator:
    for place in range(len(items)):
        yield lambda place=place: items.__delitem__(place)
    for place in range(len(items) - 1):
        yield lambda place=place: items.__setitem__(slice(place, place + 2), items[place : place + 2][::-1])


def _other_values(value: object) -> tuple:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1)
    return (2 * value,) if isinstance(value, float) else ()


def _instead(node: ast.AST) -> Iterator:
    """Put a part of an expression in its place: one side of a sum, a branch, what a call is given."""
    for field, child in ast.iter_fields(node):
        for place, one in enumerate(child) if isinstance(child, list) else [(None, child)]:
            for part in _parts(one):
                if place is None:
                    yield lambda field=field, part=part: setattr(node, field, part)
                else:
                    yield lambda child=child, place=place, part=part: child.__setitem__(place, part)


def _parts(node: object) -> list[ast.expr]:
    """What can stand in an expression's place because it stands inside it."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.BoolOp):
        if len(node.values) == 2:
            return list(node.values)
        return [
            ast.BoolOp(node.op, node.values[:place] + node.values[place + 1 :]) for place in range(len(node.values))
        ]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.Call):
        receiver = [node.func.value] if isinstance(node.func, ast.Attribute) and _is_value(node.func.value) else []
        return [*receiver, *(arg for arg in node.args[:1] if not isinstance(arg, ast.Starred))]
    return []


def _is_value(node: ast.expr) -> bool:
    """A module's name is none."""
    return not (isinstance(node, ast.Name) and node.id in ("np", "tf", "keras", "math", "jax", "ops", "jnp")) and not (
        isinstance(node, ast.Attribute) and not _is_value(node.value)
    )


def _without_statements(node: ast.AST) -> Iterator:
    """Leave a statement out, an `if` with what it guards or without its condition."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if not isinstance(block, list):
            continue
        for place, statement in enumerate(block):
            if isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)):
                continue
            yield lambda block=block, place=place: block.__setitem__(place, ast.Pass())
            if isinstance(statement, (ast.If, ast.With)):
                yield lambda block=block, place=place: block.__setitem__(slice(place, place + 1), block[place].body)


def same_functions(exercise: str, question: str) -> dict[str, str]:
    """Changes of an answer that leave it the same function, each with the reason."""
    stored = tomllib.loads(SAME_FILE.read_text(encoding="utf-8")) if SAME_FILE.exists() else {}
    return {row["change"]: row["why"] for row in stored.get(exercise, {}).get(question, ())}


def chosen(exercise: str, question: Question, sample: int | None, seed: int, edits=mutants) -> list[int]:
    """Numbers of the mutants that are not the same function: all, or so many drawn by the seed."""
    same_ones = same_functions(exercise, question.name)
    numbers = [n for n, one in enumerate(edits(question.answer.source)) if one.change not in same_ones]
    return numbers if sample is None or sample >= len(numbers) else random.Random(seed).sample(numbers, sample)


def verdict(question: Question, mutant: Mutant, seed: int) -> dict[str, str]:
    """What the check says of one mutant: its outcome, the mistake that it names, and the verdict's text."""
    noise = io.StringIO()
    with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        try:
            names = question.answer.names_of(mutant.source)
        except Exception as error:
            return {"outcome": UNNAMED, "mistake": "", "said": f"its cell raises {type(error).__name__}: {error}"}
        said = judge(question, ask(question.probe, question.asks_for, names, seed), seed)
    outcome = PASSED if said.right else NAMED if said.mistake else UNNAMED
    return {"outcome": outcome, "mistake": said.mistake or "", "said": said.message}


def prepared(question: Question, seed: int) -> Question:
    """The question with what its mistakes answer computed once for all mutants."""

    def recognised_by(mistake):
        if mistake.recognise:
            return mistake
        expected = ask(question.probe, question.asks_for, question.stand_ins(mistake), seed)
        if "stopped" in expected:
            return dataclasses.replace(
                mistake,
                recognise=lambda answers, _: (
                    answers.get("stopped", {}).get("kind") == expected["stopped"]["kind"]
                    and answers["stopped"].get("error") == expected["stopped"].get("error")
                ),
            )
        return dataclasses.replace(mistake, recognise=lambda answers, _: same(answers, expected))

    return dataclasses.replace(question, mistakes=tuple(map(recognised_by, question.mistakes)))


def serve(exercise: str, name: str, seed: int, edits) -> None:
    """In a process of its own: a mutant's number a line comes in, its verdict goes out."""
    channel, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    question = next(one for one in judges.questions(exercise) if one.name == name)
    devices.simulate(4, "tensorflow")
    all_mutants, ready = edits(question.answer.source), prepared(question, seed)
    unchanged = verdict(ready, Mutant("", question.answer.source), seed)
    print(json.dumps(unchanged), file=channel, flush=True)
    for line in sys.stdin:
        print(json.dumps(verdict(ready, all_mutants[int(line)], seed)), file=channel, flush=True)


class Server:
    """A process that judges mutants of one question; started again after one that hangs or kills it."""

    def __init__(self, exercise: str, question: Question, seed: int, edits):
        self._command = [sys.executable, __file__, exercise, question.name, "--serve", "--seed", str(seed)]
        self._command += ["--sizes"] * (edits is cut_sizes)
        self._seconds, self._process = SECONDS * (10 if question.takes_long else 1), None

    def __call__(self, number: int) -> dict[str, str]:
        if self._process is None:
            self._start()
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        line = self._read(self._seconds)
        if line:
            return json.loads(line)
        self.close()
        return {"outcome": HUNG, "mistake": "", "said": f"no verdict within {self._seconds} s, or its process ended"}

    def _start(self) -> None:
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(self._command, text=True, env=environment, start_new_session=True, **pipes)
        unchanged = json.loads(self._read(20 * self._seconds) or '{"outcome": "", "said": "its process did not start"}')
        if unchanged["outcome"] != PASSED:
            raise RuntimeError(
                f"the published answer to {' '.join(self._command[2:4])} is refused: {unchanged['said']}"
            )

    def _read(self, seconds: float) -> str:
        import select

        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._process.stdout.readline() if ready else ""

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None


def score(exercise: str, question: Question, sample: int | None, seed: int, edits) -> list[tuple[Mutant, dict]]:
    """Every chosen mutant of a question with what its check said."""
    made, server = edits(question.answer.source), Server(exercise, question, seed, edits)
    try:
        return [(made[number], server(number)) for number in chosen(exercise, question, sample, seed, edits)]
    finally:
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exercise", nargs="?")
    parser.add_argument("question", nargs="?")
    parser.add_argument("--sample", type=int, help="so many of each quick question; all, unless given")
    parser.add_argument("--sample-of-long", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="draws inputs and sample")
    parser.add_argument("--sizes", action="store_true", help="cut arguments, and make no other edits")
    parser.add_argument("--say", action="store_true", help="print every verdict, not only of what passed")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen_by = parser.parse_args()
    edits = cut_sizes if chosen_by.sizes else mutants
    if chosen_by.serve:
        return serve(chosen_by.exercise, chosen_by.question, chosen_by.seed, edits)
    asked = [
        (exercise, question)
        for exercise in ([chosen_by.exercise] if chosen_by.exercise else judges.MODULES)
        for question in judges.questions(exercise)
        if chosen_by.question in (None, question.name)
    ]

    def of(row):
        exercise, question = row
        sample = chosen_by.sample_of_long if question.takes_long else chosen_by.sample
        found = score(exercise, question, sample, chosen_by.seed, edits)
        print(f"{exercise} {question.name}: {len(found)} tried", flush=True)
        return found

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(of, asked))
    rows = []
    for (exercise, question), verdicts in zip(asked, found):
        counts = Counter(said["outcome"] for _, said in verdicts)
        refused = len(verdicts) - counts[PASSED]
        rows.append(
            (exercise, question.name, len(verdicts), refused, counts[NAMED], counts[HUNG], counts[PASSED])
            + (len(same_functions(exercise, question.name)),)
        )
        for mutant, said in verdicts:
            if chosen_by.say or said["outcome"] in (PASSED, HUNG):
                print(f"\n{exercise} {question.name} {said['outcome']}: {mutant.change}")
                print(said["said"] if chosen_by.say else "")
    print(Table(("exercise", "question", "mutants", "refused", NAMED, HUNG, PASSED, "same function"), rows))


if __name__ == "__main__":
    main()
