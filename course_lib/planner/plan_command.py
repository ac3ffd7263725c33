"""`course plan`: memory and time of a training step on chips that you need not have. Used by cli.py."""

import argparse
import csv
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from course_lib import devices
from course_lib.cluster.worker_program import WorkerProgram, search_current_folder
from course_lib.errors import CourseError
from course_lib.planner.blocks import Chain
from course_lib.planner.calibration import fitted
from course_lib.planner.keras_model import first_line, from_keras
from course_lib.planner.layout import DEGREES, PRECISIONS, RECOMPUTE, ZERO, Layout
from course_lib.planner.layout_search import search, splits_norms
from course_lib.planner.measured_machine import this_machine
from course_lib.planner.prediction import predict
from course_lib.planner.published_runs import NEEDED, PREDICTED, WHY_NOT, fill, read_table
from course_lib.planner.rented_chips import CHIPS, Cluster, find_chip
from course_lib.planner.transformer import Transformer

EXAMPLE = "course plan gpt3-175b --chip a100-80gb --chips 1024 --batch 1536"
# Dimensions: Brown and others (2020), arXiv 2005.14165, table 2.1; the released configurations of Llama 2;
# Dubey and others (2024), arXiv 2407.21783, table 3.
LLAMA = {"gated": True, "tied": False}
MODELS = {
    "gpt2-124m": Transformer(12, 768, 12, 50257, 1024),
    "gpt3-175b": Transformer(96, 12288, 96, 50257, 2048),
    "llama2-7b": Transformer(32, 4096, 32, 32000, 4096, 11008, **LLAMA),
    "llama2-70b": Transformer(80, 8192, 64, 32000, 4096, 28672, 8, **LLAMA),
    "llama3-8b": Transformer(32, 4096, 32, 128256, 8192, 14336, 8, **LLAMA),
    "llama3-405b": Transformer(126, 16384, 128, 128256, 8192, 53248, 8, **LLAMA),
}
BY_NUMBERS = "layers=48,hidden=6144,heads=64,vocabulary=51200,sequence_length=2048"
SLOTS = {"adam": 2, "adamw": 2, "lion": 1, "momentum": 1, "rmsprop": 1, "sgd": 0}  # numbers kept per parameter
ONE_LAYOUT = {"micro_batch": None, "recompute": "none", "zero": 0, "interleave": 1}  # a search tries these itself


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser a model, a cluster and a layout, or a table of them."""
    add = parser.add_argument
    own = 'your own Keras model: a .keras file, or a function that makes it, "file.py:function"'
    add("model", nargs="?", help=f'{", ".join(MODELS)}, numbers such as "{BY_NUMBERS}", or {own}')
    add("--chip", help=f"{', '.join(CHIPS)}; without it, this machine")
    add("--chips", type=int, default=1, help="their number")
    add("--batch", type=int, help="examples of the global batch")
    for degree in DEGREES:
        add(f"--{degree}", type=int, help="devices; any of these four asks for one layout, none for a search")
    micro_batch = "examples of one replica at a time; its whole share by default, and 1 in a pipeline"
    add("--micro-batch", type=int, help=micro_batch)
    add("--recompute", choices=RECOMPUTE, default="none", help="in the backward pass")
    add("--zero", type=int, choices=ZERO, default=0, help="ZeRO stage; 3 is FSDP")
    add("--interleave", type=int, default=1, help="chunks of the model per pipeline stage")
    precision = f"one of {', '.join(PRECISIONS)}; the chip's usual one by default"
    add("--precision", choices=PRECISIONS, metavar="POLICY", help=precision)
    add("--optimizer", default="adam", help=f"{', '.join(SLOTS)}; of a Keras model any that Keras knows")
    fed = "what the input pipeline delivers; enough by default"
    add("--examples-per-second", type=float, default=0, help=fed)
    table = "predict every row of a table with the columns of planner/runs.csv"
    add("--table", type=Path, metavar="IN.csv", help=table)
    add("--out", type=Path, metavar="OUT.csv", help="where to write that table with the predictions")
    add("--picture", type=_svg, metavar="FILE.svg", help="draw memory and time by kind")
    add("--json", action="store_true", help="print JSON for a program")


def plan(arguments: argparse.Namespace) -> int:
    """Predict memory and time of a training step on chips that need not be here; 0 when something fits, 1 when not."""
    if arguments.table or arguments.out:
        return _table(arguments.table, arguments.out, arguments.at)
    batch, fed = arguments.batch, arguments.examples_per_second
    if not arguments.model or batch is None:
        raise CourseError(f"name a model and its global batch, as in: {EXAMPLE}")
    if batch < 1 or not 0 <= fed < math.inf:
        raise CourseError(
            "--batch must be a whole number of at least 1, and --examples-per-second a number of at least 0."
        )
    cluster = _cluster(arguments)  # before the model: devices are simulated before a framework starts
    model = _model(arguments.model, arguments.optimizer)
    if cluster.chips == 1 or any(getattr(arguments, degree) is not None for degree in DEGREES):
        answer = predict(model, cluster, _layout(arguments, cluster), batch, examples_per_second=fed)
        fits, drawn = answer.fits, [answer]
    else:
        given = [name for name, default in ONE_LAYOUT.items() if getattr(arguments, name) != default]
        if given:
            raise CourseError(
                f"--{given[0].replace('_', '-')} belongs to one layout, and this call searches them all: "
                "add --data, --tensor, --pipeline or --sequence."
            )
        answer = search(model, cluster, batch, precision=arguments.precision, examples_per_second=fed)
        fits, drawn = answer.best is not None, [one for one in (answer.best, answer.runner_up) if one]
    print(json.dumps(answer.as_dict(), indent=2) if arguments.json else answer)
    if arguments.picture and drawn:
        from course_lib import show

        try:
            arguments.picture.write_text(show.plans({str(one.layout): one for one in drawn}).svg)
        except OSError as error:
            raise CourseError(f"{arguments.picture} cannot be written: {error.strerror}.") from None
    return 0 if fits else 1


def _svg(name: str) -> Path:
    if not name.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{name} is to hold an SVG: give it a name that ends in .svg")
    return Path(name)


def _table(source: Path | None, target: Path | None, at: Callable[[str], None]) -> int:
    if source is None or target is None:
        raise CourseError("a table is predicted with both --table IN.csv and --out OUT.csv.")
    read, rows, complaints = read_table(source), [], []
    for row, complaint in fill(read, fitted()):
        rows.append(row)
        complaints += [complaint] if complaint else []
        at(f"row {len(rows)} of {len(read)}")
    for complaint in complaints:
        print(f"course plan: {complaint}", file=sys.stderr)
    try:
        with target.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else [*NEEDED, *PREDICTED, WHY_NOT])
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise CourseError(f"{target} cannot be written: {error.strerror}.") from None
    memories, times = (sum(bool(row[name]) for row in rows) for name in PREDICTED)
    print(f"{len(rows)} rows: memory predicted for {memories}, step time for {times}; written to {target}")
    return 1 if complaints else 0


def _model(text: str, optimizer: str) -> Transformer | Chain:
    if text not in MODELS and "=" not in text:
        return _own(text, optimizer)
    if optimizer not in SLOTS:
        raise CourseError(
            f"of a transformer by numbers the planner knows the optimizers {', '.join(SLOTS)}, not {optimizer!r}."
        )
    return replace(MODELS.get(text) or _by_numbers(text), slots=SLOTS[optimizer])


def _own(text: str, optimizer: str) -> Chain:
    """A Keras model from a file or from the function that makes it."""
    devices.quieten()
    with devices.without_start_up_log():
        import keras

    if text.endswith(".keras"):
        try:
            return from_keras(keras.saving.load_model(text, compile=False), optimizer)
        except (OSError, ValueError, TypeError) as error:
            raise CourseError(f"{text} cannot be loaded as a Keras model: {first_line(error)}") from None
    if ":" not in text:
        known = f'{", ".join(MODELS)}, numbers, a .keras file, or "file.py:function"'
        raise CourseError(f"no model is called {text!r}: name one of {known}.")
    search_current_folder()
    make = WorkerProgram.of(text).load()
    try:
        model = make()
    except Exception as error:  # the learner's own code
        raise CourseError(f"{text} cannot build its model: {type(error).__name__}: {first_line(error)}") from None
    return from_keras(model, optimizer)


def _by_numbers(text: str) -> Transformer:
    known = [name for name in Transformer.__dataclass_fields__ if name != "slots"]  # --optimizer says it
    numbers: dict[str, int | bool] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise CourseError(f"a transformer has no {name!r}; it has {', '.join(known)}.")
        if not value.isdecimal() and value.lower() not in ("true", "false"):
            raise CourseError(f"{name} must be a whole number, or true or false, not {value!r}.")
        numbers[name] = int(value) if value.isdecimal() else value.lower() == "true"
    missing = [name for name in ("layers", "hidden", "heads", "vocabulary", "sequence_length") if name not in numbers]
    if missing:
        raise CourseError(f"a transformer by numbers also needs {', '.join(missing)}.")
    return Transformer(**numbers)


def _cluster(arguments: argparse.Namespace) -> Cluster:
    if arguments.chips < 1:
        raise CourseError(f"--chips must be a whole number of at least 1, not {arguments.chips}.")
    if arguments.chip:
        return Cluster(find_chip(arguments.chip), arguments.chips)
    if arguments.model in MODELS or "=" in arguments.model:
        some = "a100-40gb, a100-80gb, h100-80gb, h200-141gb"
        raise CourseError(f"a transformer by numbers is planned for a chip: add --chip, such as {some}.")
    devices.simulate(arguments.chips)
    return this_machine(arguments.chips)


def _layout(arguments: argparse.Namespace, cluster: Cluster) -> Layout:
    given = {degree: getattr(arguments, degree) for degree in DEGREES}
    degrees = {degree: 1 if size is None else size for degree, size in given.items()}
    micro_batch = arguments.micro_batch
    if micro_batch is None:
        micro_batch = max(1, arguments.batch // max(1, degrees["data"])) if degrees["pipeline"] == 1 else 1
    return Layout(
        **degrees,
        micro_batch=micro_batch,
        recompute=arguments.recompute,
        zero=arguments.zero,
        precision=arguments.precision or cluster.chip.usual_precision,
        interleave=arguments.interleave,
        split_norms=splits_norms(degrees["tensor"], cluster),
    )
