"""`course compile`: a train step compiled for a TPU slice that is not there. Used by cli.py."""

import argparse
import json
import os
import sys
import time

from course_lib.errors import CourseError
from course_lib.tpu.compile_request import LAYOUTS, MODELS
from course_lib.tpu.compiling import NoCompiler, compile_step, store, stored
from course_lib.tpu.find_fit import find_fit

EXAMPLE = "course compile transformer --layers 4 --topology v5e:16x16 --batch 256 --mesh data=64,model=4 --shard '.*mlp_in/kernel=,model'"
SIZES = ("layers", "width", "heads", "vocabulary", "sequence_length")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser what a step is made of."""
    parser.add_argument(
        "model",
        help=f'{", ".join(MODELS)}, or a function that makes a Keras model, "file.py:function" or "module:function"',
    )
    parser.add_argument("--topology", required=True, help="the slice, such as v5e:2x4 or v5p:8x8x8")
    parser.add_argument("--batch", type=int, required=True, help="rows of the global batch")
    parser.add_argument(
        "--mesh", default="", metavar="AXIS=N,...", help="devices per mesh axis; all of them on data by default"
    )
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="data",
        help="fsdp splits parameters and optimizer state over the data axis",
    )
    parser.add_argument(
        "--shard",
        action="append",
        default=[],
        metavar="PATTERN=AXIS,...",
        help="the mesh axis of each dimension; repeat it",
    )
    parser.add_argument("--precision", default="float32", help="Keras' dtype policy, such as mixed_bfloat16")
    parser.add_argument("--optimizer", default="adam", help="by Keras' name")
    parser.add_argument("--loss", default="sparse_categorical_crossentropy", help="by Keras' name")
    parser.add_argument("--remat", action="store_true", help="compute inner results anew in the backward pass")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches that share one update")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="of the model")
    parser.add_argument(
        "--argument",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other of the model's, as JSON or text",
    )
    parser.add_argument("--fit", action="store_true", help="if it does not fit, try changes until one does")
    parser.add_argument("--store", action="store_true", help="keep the result for machines that have no TPU compiler")
    parser.add_argument("--json", action="store_true", help="print JSON for a program")


def compile_model(arguments: argparse.Namespace) -> int:
    """Compile a model's train step for a TPU slice that is not there; 0 when it fits, 1 when not."""
    began = time.monotonic()

    def show(words: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {words}", file=sys.stderr, flush=True)

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # "module:function" of the folder that one types in, as for python -m
    try:
        report = _compiled(arguments, show)
    except NoCompiler as missing:
        return _without_compiler(missing, arguments.json)
    if arguments.store:
        store(report)
    search = find_fit(report, show) if arguments.fit and not report.fits else None
    if arguments.json:
        print(json.dumps({**report.as_dict(), **({"search": search.as_dict()} if search else {})}, indent=2))
    else:
        print(report, *([search] if search else []), sep="\n\n")
    return 0 if report.fits else 1


def _compiled(arguments: argparse.Namespace, show):
    sizes = {name: getattr(arguments, name) for name in SIZES if getattr(arguments, name) is not None}
    return compile_step(
        arguments.model,
        arguments.topology,
        arguments.batch,
        mesh=dict(_axis(part) for part in arguments.mesh.split(",") if part),
        layout=arguments.layout,
        shards=dict(map(_shard, arguments.shard)),
        precision=arguments.precision,
        optimizer=arguments.optimizer,
        loss=arguments.loss,
        remat=arguments.remat,
        accumulation=arguments.accumulation,
        arguments={**sizes, **dict(map(_argument, arguments.argument))},
        show=show,
    )


def _without_compiler(missing: NoCompiler, as_json: bool) -> int:
    """One line, and what there is instead."""
    print(f"course compile: {missing}", file=sys.stderr)
    reports = stored()
    if as_json:
        print(json.dumps([report.as_dict() for report in reports], indent=2))
    else:
        print(
            "Stored results:",
            *(f"  {report.title.splitlines()[0]}, {report.request.topology}: {report.verdict}" for report in reports),
            sep="\n",
        )
    return 2


def _axis(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if not name.isidentifier() or not size.isdecimal():
        raise CourseError(f"--mesh takes AXIS=DEVICES,..., such as data=64,model=4, not {text!r}.")
    return name, int(size)


def _shard(text: str) -> tuple[str, tuple[str | None, ...]]:
    pattern, equals, axes = text.rpartition("=")
    if not equals:
        raise CourseError(f"--shard takes PATTERN=AXIS,..., such as '.*kernel=,model', not {text!r}.")
    return pattern, tuple(axis or None for axis in axes.split(","))


def _argument(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise CourseError(f"--argument takes NAME=VALUE, such as classes=10, not {text!r}.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
