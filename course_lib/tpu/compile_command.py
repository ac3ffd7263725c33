"""`course compile`: a train step compiled for a TPU slice that this machine does not have. Used by cli.py."""

import argparse
import json
import sys
import time

from course_lib.cluster.worker_program import name_and_value, search_current_folder
from course_lib.errors import CourseError
from course_lib.tpu.compile_client import NoCompiler, compile_step, store, stored
from course_lib.tpu.compile_report import CompileReport
from course_lib.tpu.compile_request import LAYOUTS, MODELS

EXAMPLE = (
    "course compile transformer --layers 4 --topology v5e:16x16 --batch 256 "
    "--mesh data=64,model=4 --shard '.*mlp_in/kernel=,model'"
)
SIZES = ("layers", "width", "heads", "vocabulary", "sequence_length")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser what a step is made of."""
    add = parser.add_argument
    function = 'or a function that makes a Keras model, "file.py:function" or "module:function"'
    add("model", help=f"{', '.join(MODELS)}, {function}")
    add("--topology", required=True, help="the slice, such as v5e:2x4 or v5p:8x8x8")
    add("--batch", type=int, required=True, help="rows of the global batch")
    mesh = "devices per mesh axis; all of them on data by default"
    add("--mesh", default="", metavar="AXIS=N,...", help=mesh)
    layout = "fsdp splits parameters and optimizer state over the data axis"
    add("--layout", choices=LAYOUTS, default="data", help=layout)
    repeated = {"action": "append", "default": []}
    shard = "the mesh axis of each dimension; repeat it"
    add("--shard", **repeated, metavar="PATTERN=AXIS,...", help=shard)
    add("--precision", default="float32", help="Keras' dtype policy, such as mixed_bfloat16")
    add("--optimizer", default="adam", help="Keras' name of it")
    add("--loss", default="sparse_categorical_crossentropy", help="Keras' name of it")
    add("--remat", action="store_true", help="compute inner results again in the backward pass")
    add("--accumulation", type=int, default=1, help="micro-batches that share one update")
    for name in SIZES:
        add(f"--{name.replace('_', '-')}", type=int, help="of the model")
    other = "any other argument of the model, as JSON or text"
    add("--argument", **repeated, metavar="NAME=VALUE", help=other)
    add("--store", action="store_true", help="keep the result for machines that have no TPU compiler")
    add("--json", action="store_true", help="print JSON for a program")


def compile_model(arguments: argparse.Namespace) -> int:
    """Compile a model's train step for a TPU slice that this machine does not have; 0 when it fits, 1 when not."""
    search_current_folder()
    try:
        report = _compiled(arguments)
    except NoCompiler as missing:  # the reason in one line, and the stored results
        print(f"course compile: {missing}", file=sys.stderr)
        reports = stored()
        if arguments.json:
            print(json.dumps([report.as_dict() for report in reports], indent=2))
        else:
            lines = (f"  {one.title.splitlines()[0]}, {one.request.topology}: {one.verdict}" for one in reports)
            print("Stored results:", *lines, sep="\n")
        return 2
    if arguments.store:
        store(report)
    print(json.dumps(report.as_dict(), indent=2) if arguments.json else report)
    return 0 if report.fits else 1


def _compiled(arguments: argparse.Namespace) -> CompileReport:
    began = time.monotonic()

    def show(words: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {words}", file=sys.stderr, flush=True)

    sizes = {name: getattr(arguments, name) for name in SIZES if getattr(arguments, name) is not None}
    options = ("layout", "precision", "optimizer", "loss", "remat", "accumulation")
    return compile_step(
        arguments.model,
        arguments.topology,
        arguments.batch,
        mesh=_mesh(arguments.mesh),
        shards=dict(map(_shard, arguments.shard)),
        arguments={**sizes, **dict(map(name_and_value, arguments.argument))},
        show=show,
        **{name: getattr(arguments, name) for name in options},
    )


def _mesh(text: str) -> dict[str, int]:
    mesh = {}
    for part in filter(None, text.split(",")):
        name, _, size = part.partition("=")
        if not name.isidentifier() or not size.isdecimal():
            raise CourseError(f"--mesh takes AXIS=DEVICES,..., such as data=64,model=4, not {part!r}.")
        mesh[name] = int(size)
    return mesh


def _shard(text: str) -> tuple[str, tuple[str | None, ...]]:
    pattern, equals, axes = text.rpartition("=")
    if not equals:
        raise CourseError(f"--shard takes PATTERN=AXIS,..., such as '.*kernel=,model', not {text!r}.")
    return pattern, tuple(axis or None for axis in axes.split(","))
