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
from course_lib.errors import CourseError, telling_line
from course_lib.planner.blocks import Chain
from course_lib.planner.calibration import fitted
from course_lib.planner.keras_model import from_keras
from course_lib.planner.layout import DEGREES, OFFLOAD, PRECISIONS, RECOMPUTE, ZERO, Layout
from course_lib.planner.layout_search import search, splits_norms
from course_lib.planner.measured_machine import this_machine
from course_lib.planner.memory import CONTEXT_BYTES
from course_lib.planner.models_by_numbers import BY_NUMBERS, MODELS, SLOTS, read_model, says_numbers
from course_lib.planner.prediction import in_bytes, predict
from course_lib.planner.published_runs import NEEDED, PREDICTED, WHY_NOT, fill, read_table
from course_lib.planner.rented_chips import CHIPS, GIB, OWN, Cluster, find_chip
from course_lib.planner.transformer import Transformer, inference_bytes
from course_lib.planner.what_to_run import what_to_run

EXAMPLE = "course plan gpt3-175b --chip a100-80gb --chips 1024 --batch 1536"
MOST_EXAMPLES = 10**9
OWN_CHIP = {
    "tflops": ("TFLOPS", "10^12 operations a second in half precision, dense"),
    "memory_gib": ("GIB", "its memory"),
    "read_gbs": ("GB/S", "between its memory and the chip"),
    "link_within": ("GB/S", "that it sends inside its node; PCIe's 25 by default"),
    "link_between": ("GB/S", "that it sends to other nodes; 100 gigabit/s by default"),
    "per_node": ("CHIPS", "chips of a node; 8 by default"),
}
# What belongs to one layout.
ONE_LAYOUT = {"micro_batch": None, "recompute": "none", "zero": 0, "interleave": 1}
ONE_LAYOUT |= {"shard": None, "expert": 1, "offload": ()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser a model, a cluster and a layout, or a table of them."""
    add = parser.add_argument
    own = 'your own Keras model: a .keras file, or a function that makes it, "file.py:function"'
    changed = '"llama2-7b,lora=16,frozen_bits=4" changes some'
    known = f'{", ".join(MODELS)}, a config.json as Hugging Face writes it, or numbers such as "{BY_NUMBERS}"'
    add("model", nargs="?", help=f"{known}; {changed}; or {own}")
    add("--chip", help=f"{', '.join(CHIPS)}; without it, this machine")
    add("--chips", type=int, default=1, help="their number")
    for name, (unit, meaning) in OWN_CHIP.items():
        add(f"--{name.replace('_', '-')}", type=float, metavar=unit, help=f"of a chip of your own: {meaning}")
    add("--batch", type=int, help="examples of the global batch")
    add("--tokens", type=float, help="of the whole training, for its hours; of a transformer by numbers")
    add("--price", type=float, help="of a chip's hour, for the training's cost")
    for degree in DEGREES:
        add(f"--{degree}", type=int, help="devices; any of these four asks for one layout, none for a search")
    micro_batch = "examples of one replica at a time; its whole share by default, and 1 in a pipeline"
    add("--micro-batch", type=int, help=micro_batch)
    add("--recompute", choices=RECOMPUTE, default="none", help="in the backward pass")
    add("--zero", type=int, choices=ZERO, default=0, help="ZeRO stage; 3 is FSDP")
    add("--shard", type=int, help="replicas of a group that divides ZeRO-3's states (HSDP); all by default")
    add("--expert", type=int, default=1, help="replicas that deal out a layer's experts among them")
    add("--interleave", type=int, default=1, help="chunks of the model per pipeline stage")
    host = f"{', '.join(OFFLOAD)}: held by the host's memory instead of the chip's"
    add("--offload", nargs="+", choices=OFFLOAD, default=(), metavar="PART", help=host)
    sizes = ", ".join(f"{name} {one.adam_bytes}" for name, one in PRECISIONS.items())
    precision = f"a stack's formats, with its bytes per parameter with Adam: {sizes}; Keras' for the chip by default"
    add("--precision", choices=PRECISIONS, metavar="POLICY", help=precision)
    add("--optimizer", default="adam", help=f"{', '.join(SLOTS)}; of a Keras model any that Keras knows")
    fed = "what the input pipeline delivers; enough by default"
    inference = "instead of training: what weights, keys and values take, and how many sequences of a batch fit"
    add("--inference", action="store_true", help=inference)
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
    if not 1 <= batch <= MOST_EXAMPLES or not 0 <= fed < math.inf:
        raise CourseError(
            f"--batch must be a whole number between 1 and {MOST_EXAMPLES:,}, and --examples-per-second a number of "
            "at least 0."
        )
    cluster = _cluster(arguments)  # before the model: devices are simulated before a framework starts
    numbers = says_numbers(arguments.model)
    model = (read_model if numbers else _own)(arguments.model, arguments.optimizer)
    if arguments.inference:
        return _inference(arguments, model, cluster)
    if cluster.chips == 1 or any(getattr(arguments, degree) is not None for degree in DEGREES):
        answer = predict(model, cluster, _layout(arguments, cluster), batch, examples_per_second=fed)
        fits, drawn = answer.fits, [answer]
    else:
        why = "one layout, and this call searches them all: add --data, --tensor, --pipeline or --sequence"
        _require_none(arguments, ONE_LAYOUT, why)
        answer = search(model, cluster, batch, precision=arguments.precision, examples_per_second=fed)
        fits, drawn = answer.best is not None, [one for one in (answer.best, answer.runner_up) if one]
    training = _training(arguments, model, answer)
    beside = {"training": training, "start": what_to_run(answer, model)}
    given = {**answer.as_dict(), **{name: words for name, words in beside.items() if words}}
    print(json.dumps(given, indent=2) if arguments.json else "\n".join(filter(None, [repr(answer), *beside.values()])))
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


def _own(text: str, optimizer: str) -> Chain:
    """A Keras model from a file or from the function that makes it."""
    devices.quieten()
    with devices.without_start_up_log():
        import keras

    if text.endswith(".keras"):
        try:
            return from_keras(keras.saving.load_model(text, compile=False), optimizer)
        except (OSError, ValueError, TypeError) as error:
            raise CourseError(f"{text} cannot be loaded as a Keras model: {telling_line(str(error))}") from None
    if ":" not in text:
        known = f'{", ".join(MODELS)}, numbers, a .keras file, or "file.py:function"'
        raise CourseError(f"no model is called {text!r}: name one of {known}.")
    search_current_folder()
    make = WorkerProgram.of(text).load()
    try:
        model = make()
    except Exception as error:  # the learner's own code
        raise CourseError(
            f"{text} cannot build its model: {type(error).__name__}: {telling_line(str(error))}"
        ) from None
    return from_keras(model, optimizer)


def _cluster(arguments: argparse.Namespace) -> Cluster:
    if arguments.chips < 1:
        raise CourseError(f"--chips must be a whole number of at least 1, not {arguments.chips}.")
    own = {name: getattr(arguments, name) for name in OWN_CHIP if getattr(arguments, name) is not None}
    if arguments.chip:
        return Cluster(replace(find_chip(arguments.chip), **_figures(own)), arguments.chips)
    if own:
        if missing := [f"--{name.replace('_', '-')}" for name in list(OWN_CHIP)[:3] if name not in own]:
            raise CourseError(f"a chip of your own also needs {', '.join(missing)}.")
        return Cluster(replace(OWN, **_figures(own)), arguments.chips)
    if says_numbers(arguments.model):
        some = "a100-40gb, a100-80gb, h100-80gb, h200-141gb"
        raise CourseError(f"a transformer by numbers is planned for a chip: add --chip, such as {some}.")
    devices.simulate(arguments.chips)
    return this_machine(arguments.chips)


def _figures(own: dict[str, float]) -> dict:
    """What the options for a chip say, as fields of a Chip."""
    for name, value in own.items():
        if not 0 < value < math.inf or name == "per_node" and value % 1:
            raise CourseError(f"--{name.replace('_', '-')} must be a number above 0, and a whole one of chips.")
    fields = {"memory_bytes": ("memory_gib", GIB), "read_per_second": ("read_gbs", 1e9)}
    fields |= {"within": ("link_within", 1e9), "between": ("link_between", 1e9)}
    found = {field: own[name] * unit for field, (name, unit) in fields.items() if name in own}
    if "tflops" in own:
        half = own["tflops"] * 1e12
        found["flops_per_second"] = {"bfloat16": half, "float16": half, "float32": half / 2}
    return found | ({"per_node": int(own["per_node"])} if "per_node" in own else {})


def _training(arguments: argparse.Namespace, model: Transformer | Chain, answer) -> str | None:
    """Hours and cost of a whole training, in one line."""
    best = getattr(answer, "best", answer)
    if arguments.price is not None and not (arguments.tokens and 0 <= arguments.price < math.inf):
        raise CourseError("--price is a number of at least 0, and counts for --tokens of a whole training.")
    if arguments.tokens is None or best is None:
        return None
    if not isinstance(model, Transformer) or not 0 < arguments.tokens < math.inf:
        raise CourseError("--tokens is a number above 0, and counts for a transformer by numbers.")
    steps = arguments.tokens / (arguments.batch * model.sequence_length)
    low, high = best.step_interval
    low, hours, high = (seconds * steps / 3600 for seconds in (low, best.step.total, high))
    chip_hours = hours * best.cluster.chips
    line = (
        f"{arguments.tokens:,.3g} tokens: {hours:,.3g} hours ({low:,.3g} to {high:,.3g}), {chip_hours:,.3g} of a chip"
    )
    return line + (f", at {arguments.price:g} each {chip_hours * arguments.price:,.3g}" if arguments.price else "")


def _require_none(arguments: argparse.Namespace, defaults: dict[str, object], why: str) -> None:
    """Raise CourseError where an option is given that does not count.

    why  what it belongs to, and what is asked for instead
    """
    if given := [name for name, default in defaults.items() if getattr(arguments, name) != default]:
        raise CourseError(f"--{given[0].replace('_', '-')} belongs to {why}.")


def _inference(arguments: argparse.Namespace, model: Transformer | Chain, cluster: Cluster) -> int:
    """Memory of generating text, in one line."""
    if not isinstance(model, Transformer):
        raise CourseError("--inference counts keys and values of a transformer by numbers, not of a Keras model.")
    training = dict.fromkeys((*DEGREES, "tokens", "price", "precision", "picture")) | ONE_LAYOUT
    training |= {"optimizer": "adam", "examples_per_second": 0}
    _require_none(arguments, training, "a training step, and --inference asks for none")
    weights, cache = inference_bytes(model)
    sequences = int((cluster.chips * (cluster.chip.memory_bytes - CONTEXT_BYTES) - weights) // cache)
    given = {"weights_bytes": weights, "cache_bytes_per_sequence": cache, "sequences": max(0, sequences)}
    line = (
        f"inference: weights {in_bytes(weights)}, keys and values {in_bytes(cache)} for each sequence of "
        f"{model.sequence_length:,} tokens; {max(0, sequences):,} sequences fit {cluster.chips} x {cluster.chip.name}, "
        "divided evenly"
    )
    print(json.dumps(given, indent=2) if arguments.json else line)
    return 0 if sequences >= arguments.batch else 1


def _layout(arguments: argparse.Namespace, cluster: Cluster) -> Layout:
    given = {degree: getattr(arguments, degree) for degree in DEGREES}
    degrees = {degree: 1 if size is None else size for degree, size in given.items()}
    micro_batch = arguments.micro_batch
    if micro_batch is None:
        micro_batch = max(1, arguments.batch // max(1, degrees["data"])) if degrees["pipeline"] == 1 else 1
    if arguments.zero and degrees["data"] * degrees["sequence"] == 1:
        raise CourseError(
            f"ZeRO-{arguments.zero} divides its states over replicas, and there is one: add --data or leave it out."
        )
    return Layout(
        **degrees,
        micro_batch=micro_batch,
        recompute=arguments.recompute,
        zero=arguments.zero,
        precision=arguments.precision or cluster.chip.usual_precision,
        interleave=arguments.interleave,
        shard=arguments.shard,
        expert=arguments.expert,
        offload=tuple(arguments.offload),
        split_norms=splits_norms(degrees["tensor"], cluster),
    )
