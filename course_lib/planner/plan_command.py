"""`course plan`: memory and time of a training step on chips that are not here. Used by cli.py."""

import argparse
import csv
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from course_lib import devices
from course_lib.cluster.worker_program import WorkerProgram
from course_lib.errors import CourseError
from course_lib.planner.blocks import Chain
from course_lib.planner.calibration import fitted
from course_lib.planner.layout import PRECISIONS, RECOMPUTE, ZERO, Layout
from course_lib.planner.layout_search import search
from course_lib.planner.prediction import predict
from course_lib.planner.published_runs import NEEDED, PREDICTED, fill, read_table
from course_lib.planner.rented_chips import CHIPS, Cluster, find_chip
from course_lib.planner.transformer import Transformer

EXAMPLE = "course plan gpt3-175b --chip a100-80gb --chips 1024 --batch 1536"
# Dimensions: Brown and others (2020), arXiv 2005.14165, table 2.1; the released configurations of Llama 2; Dubey and others (2024), arXiv 2407.21783, table 3.
MODELS = {
    "gpt2-124m": Transformer(12, 768, 12, 50257, 1024),
    "gpt3-175b": Transformer(96, 12288, 96, 50257, 2048),
    "llama2-7b": Transformer(32, 4096, 32, 32000, 4096, ffn=11008, gated=True, tied=False),
    "llama2-70b": Transformer(80, 8192, 64, 32000, 4096, ffn=28672, kv_heads=8, gated=True, tied=False),
    "llama3-8b": Transformer(32, 4096, 32, 128256, 8192, ffn=14336, kv_heads=8, gated=True, tied=False),
    "llama3-405b": Transformer(126, 16384, 128, 128256, 8192, ffn=53248, kv_heads=8, gated=True, tied=False),
}
SIZES = ("data", "tensor", "pipeline", "sequence")
ONE_LAYOUT = {"micro_batch": None, "recompute": "none", "zero": 0, "interleave": 1}  # and the parser's defaults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser a model, a cluster and a layout, or a table of them."""
    parser.add_argument(
        "model",
        nargs="?",
        help=f'{", ".join(MODELS)}, numbers such as "layers=48,hidden=6144,heads=64,vocabulary=51200,sequence_length=2048", '
        'or your own Keras model: a .keras file, or a function that makes it, "file.py:function"',
    )
    parser.add_argument("--chip", help=f"{', '.join(CHIPS)}; without it, this machine")
    parser.add_argument("--chips", type=int, default=1, help="of them in all")
    parser.add_argument("--batch", type=int, help="examples of the global batch")
    for size in SIZES:
        parser.add_argument(
            f"--{size}", type=int, help="devices; give any of these four to ask for one layout, none to search them all"
        )
    parser.add_argument(
        "--micro-batch",
        type=int,
        help="examples of one replica at a time; its whole share by default, and 1 in a pipeline",
    )
    parser.add_argument("--recompute", choices=RECOMPUTE, default="none", help="in the backward pass")
    parser.add_argument("--zero", type=int, choices=ZERO, default=0, help="ZeRO stage; 3 is FSDP")
    parser.add_argument("--interleave", type=int, default=1, help="chunks of the model per pipeline stage")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="Keras' policies, or with a master copy; the chip's usual one by default",
    )
    parser.add_argument("--optimizer", default="adam", help="of a Keras model: adam, momentum or sgd")
    parser.add_argument(
        "--examples-per-second", type=float, default=0, help="that the input pipeline delivers; enough by default"
    )
    parser.add_argument(
        "--table", type=Path, metavar="IN.csv", help="predict every row of a table with the columns of plan/runs.csv"
    )
    parser.add_argument("--out", type=Path, metavar="OUT.csv", help="where to write that table with the predictions")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw memory and time by kind")
    parser.add_argument("--json", action="store_true", help="print JSON for a program")


def plan(arguments: argparse.Namespace) -> int:
    """Predict memory and time of a training step on chips that need not be here; 0 when something fits, 1 when not."""
    if arguments.table or arguments.out:
        return _table(arguments.table, arguments.out)
    if not arguments.model or arguments.batch is None:
        raise CourseError(f"name a model and its global batch, as in: {EXAMPLE}")
    if arguments.batch < 1 or not 0 <= arguments.examples_per_second < math.inf:
        raise CourseError("--batch is a whole number from 1, and --examples-per-second a number from 0.")
    cluster = _cluster(arguments)  # before the model: devices are simulated before a framework starts
    model = _model(arguments.model, arguments.optimizer)
    if any(getattr(arguments, size) is not None for size in SIZES) or cluster.chips == 1:
        answer = predict(
            model,
            cluster,
            _layout(arguments, cluster),
            arguments.batch,
            examples_per_second=arguments.examples_per_second,
        )
        fine, drawn = answer.fits, {str(answer.layout): answer}
    else:
        _require_defaults(arguments)
        answer = search(
            model,
            cluster,
            arguments.batch,
            precision=arguments.precision,
            examples_per_second=arguments.examples_per_second,
        )
        fine, drawn = answer.best is not None, {str(p.layout): p for p in (answer.best, answer.runner_up) if p}
    print(json.dumps(answer.as_dict(), indent=2) if arguments.json else answer)
    if arguments.picture and drawn:
        from course_lib import show

        try:
            show.save(show.plans(drawn), arguments.picture)
        except OSError as error:
            raise CourseError(f"{arguments.picture} cannot be written: {error.strerror}.") from None
    return 0 if fine else 1


def _require_defaults(arguments: argparse.Namespace) -> None:
    """A search tries these itself."""
    given = [name for name, default in ONE_LAYOUT.items() if getattr(arguments, name) != default]
    if given:
        raise CourseError(
            f"--{given[0].replace('_', '-')} belongs to one layout, and this call searches them all: "
            f"add --data, --tensor, --pipeline or --sequence."
        )


def _table(source: Path | None, target: Path | None) -> int:
    if source is None or target is None:
        raise CourseError("a table is predicted with both --table IN.csv and --out OUT.csv.")
    rows, complaints = [], 0
    for row, complaint in fill(read_table(source), fitted()):
        rows.append(row)
        if complaint:
            complaints += 1
            print(f"course plan: {complaint}", file=sys.stderr)
    columns = list(rows[0]) if rows else [*NEEDED, *PREDICTED]
    try:
        with target.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise CourseError(f"{target} cannot be written: {error.strerror}.") from None
    counts = [sum(bool(row[name]) for row in rows) for name in PREDICTED]
    print(f"{len(rows)} rows: memory predicted for {counts[0]}, step time for {counts[1]}; written to {target}")
    return 1 if complaints else 0


def _model(text: str, optimizer: str) -> Transformer | Chain:
    if text in MODELS:
        return MODELS[text]
    if "=" in text:
        return _by_numbers(text)
    return _own(text, optimizer)


def _own(text: str, optimizer: str) -> Chain:
    """A Keras model from a file or from the function that makes it."""
    devices.quieten()
    with devices.without_start_up_log():
        import keras

        from course_lib.planner.keras_model import from_keras

    if text.endswith(".keras"):
        try:
            return from_keras(keras.saving.load_model(text, compile=False), optimizer)
        except (OSError, ValueError, TypeError) as error:
            raise CourseError(f"{text} cannot be loaded as a Keras model: {_first_line(error)}") from None
    if ":" not in text:
        raise CourseError(
            f'no model is called {text!r}: it is {", ".join(MODELS)}, numbers, a .keras file, or "file.py:function".'
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # "module:function" of the folder that one types in, as for python -m
    make = WorkerProgram.of(text).load()
    try:
        model = make()
    except Exception as error:  # the learner's own code
        raise CourseError(f"{text} cannot build its model: {type(error).__name__}: {_first_line(error)}") from None
    return from_keras(model, optimizer)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _by_numbers(text: str) -> Transformer:
    known = Transformer.__dataclass_fields__
    numbers: dict[str, int | bool] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise CourseError(f"a transformer has no {name!r}; it has {', '.join(known)}.")
        if not value.isdecimal() and value.lower() not in ("true", "false"):
            raise CourseError(f"{name} is a whole number, or true or false, not {value!r}.")
        numbers[name] = int(value) if value.isdecimal() else value.lower() == "true"
    missing = [name for name in ("layers", "hidden", "heads", "vocabulary", "sequence_length") if name not in numbers]
    if missing:
        raise CourseError(f"a transformer by numbers also needs {', '.join(missing)}.")
    return Transformer(**numbers)


def _cluster(arguments: argparse.Namespace) -> Cluster:
    if arguments.chips < 1:
        raise CourseError(f"--chips is a whole number from 1, not {arguments.chips}.")
    if arguments.chip:
        return Cluster(find_chip(arguments.chip), arguments.chips)
    if arguments.model in MODELS or "=" in arguments.model:
        raise CourseError(
            f"a transformer by numbers is planned for a chip: add --chip, such as {', '.join(list(CHIPS)[5:9])}."
        )
    devices.simulate(arguments.chips)
    from course_lib.planner.measured_machine import this_machine

    return this_machine(arguments.chips)


def _layout(arguments: argparse.Namespace, cluster: Cluster) -> Layout:
    sizes: Mapping[str, int] = {
        size: 1 if getattr(arguments, size) is None else getattr(arguments, size) for size in SIZES
    }
    share = arguments.batch // max(1, sizes["data"]) if sizes["pipeline"] == 1 else 1
    return Layout(
        **sizes,
        micro_batch=max(1, share) if arguments.micro_batch is None else arguments.micro_batch,
        recompute=arguments.recompute,
        zero=arguments.zero,
        precision=arguments.precision or cluster.chip.usual_precision,
        interleave=arguments.interleave,
        split_norms=sizes["tensor"] > 1,
    )
