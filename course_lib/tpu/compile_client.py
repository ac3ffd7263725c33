"""Compiles a Keras train step for TPUs that this machine does not have. Standard library only; taught in notebooks/05.

libtpu holds the real TPU compiler, and runs on any Linux x86-64 machine. Another process
does the compiling, see compile_worker.py; it stays for the next step, since importing Keras takes some seconds.
"""

import atexit
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from course_lib.cluster.start_supervisor import settings
from course_lib.cluster.worker_program import WorkerProgram
from course_lib.errors import CourseError
from course_lib.tpu.compile_report import CompileReport
from course_lib.tpu.compile_request import MODELS, Request, checked, named_model

STORED = Path(__file__).with_name("stored.json")  # written by `course compile ... --store`
# A fresh JAX on the CPU alone, which looks neither for a TPU nor for the cloud's metadata, beside any other libtpu.
SETTINGS = {
    "KERAS_BACKEND": "jax",
    "OPENBLAS_NUM_THREADS": "1",  # threads would not survive the fork
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
START = (
    "import json, os, sys; sys.path[:] = json.loads(sys.stdin.readline()); "
    "sys.stdout = os.fdopen(os.dup(1), 'w'); os.dup2(2, 1); from course_lib.tpu.compile_worker import main; main()"
)


class NoCompiler(CourseError):
    """libtpu is not installed here."""


class StepFailed(CourseError):
    """The step could not be compiled: the model's own code raised, or the compiler ended.

    traceback  of the process that compiled
    """

    def __init__(self, request: Request, traceback: str):
        super().__init__(f"{request.model_name} cannot be compiled for {request.topology}: {_reason(traceback)}")
        self.traceback = traceback


def compile_step(
    model,
    topology: str,
    batch: int,
    *,
    mesh: Mapping[str, int] | None = None,
    layout: str = "data",
    shards: Mapping[str, tuple] | None = None,
    precision: str = "float32",
    optimizer="adam",
    loss="sparse_categorical_crossentropy",
    remat: bool = False,
    accumulation: int = 1,
    arguments: Mapping[str, object] | None = None,
    show: Callable[[str], None] | None = None,
) -> CompileReport:
    """Compile a train step for a TPU slice, without allocating any of the model's variables.

    model      "cnn", "mlp" or "transformer" of models.py, with `arguments` for their sizes; a function of these
               `arguments` that makes a built keras.Model, as cluster.Job takes its program; or a keras.Model
    topology   such as "v5e:2x4"; see chips.names()
    batch      rows of the global batch
    mesh       axis name to devices; {"data": all of them} by default. The batch is split over "data"
    layout     "data", or "fsdp" to split parameters and optimizer state over the data axis too
    shards     patterns of variable paths to a mesh axis per dimension, as a LayoutMap has them
    optimizer, loss  a name, or Keras' object
    remat      compute inner results again in the backward pass: of each block of
               `transformer`, elsewhere of each layer
    accumulation  micro-batches that share one update
    show       is called with a line at each stage
    Returns    a CompileReport; where libtpu is missing, the one that is stored for the same request
    Raises     NoCompiler where libtpu is missing and nothing is stored; CourseError for a mistake in the request
    """
    data, mesh = _as_data(model, arguments or {}), dict(mesh or {})
    shards = {key: list(axes) for key, axes in (shards or {}).items()}
    optimizer, loss = _serialized(optimizer, "optimizers"), _serialized(loss, "losses")
    settings = (layout, shards, precision, optimizer, loss, remat, accumulation)
    request, show = checked(Request(data, topology, batch, mesh, *settings)), show or (lambda words: None)
    try:
        require_compiler()
    except NoCompiler as missing:
        same = [report for report in stored() if report.request == request]
        if not same:
            raise
        show(str(missing))
        return same[0]
    return CompileReport.of(_run(request, show))


def require_compiler() -> None:
    """Raise NoCompiler, with the reason, where libtpu is not installed."""
    if importlib.util.find_spec("libtpu") and importlib.util.find_spec("jax"):
        return
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        why = f"libtpu, the TPU compiler, has no build for {system} {machine}, only for Linux x86_64"
    else:
        version = f"=={importlib.metadata.version('jax')}" if importlib.util.find_spec("jax") else ""
        why = f"libtpu, the TPU compiler, is not installed: pip install 'jax[tpu]{version}'"
    raise NoCompiler(
        f"{why}. tpu.stored() has {len(stored())} results from another machine; "
        "devices.simulate(8, 'jax') runs such steps."
    )


def stored() -> list[CompileReport]:
    """Reports from another machine, for machines without the compiler."""
    rows = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else []
    return [replace(CompileReport.of(row), stored=True) for row in rows]


def store(report: CompileReport) -> None:
    """Keep a report for `stored`, in place of the one for the same request."""
    kept = (*(other for other in stored() if other.request != report.request), report)
    text = json.dumps([replace(each, stored=False).as_dict() for each in kept], indent=1)
    STORED.write_text(text + "\n", encoding="utf-8")


class _Compiler:
    """The process of compile_worker.py, and a file for libtpu's log lines."""

    def __init__(self):
        self.log = tempfile.TemporaryFile("w+")
        command = ["env", *(f"{name}={value}" for name, value in SETTINGS.items()), sys.executable, "-c", START]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log}
        self.process = subprocess.Popen(command, **pipes, text=True, start_new_session=True)
        self._send(sys.path)

    def ask(self, request: Request, show: Callable[[str], None]) -> dict:
        """What the worker answers: {"report": fields}, {"error": line} or {"traceback": text}."""
        self.log.seek(0)
        self.log.truncate()
        with suppress(BrokenPipeError):  # it has ended, and its log says why
            self._send(asdict(request))
        found = {}
        for answer in map(json.loads, self.process.stdout):
            if "ended" in answer:
                break
            if "progress" in answer:
                show(answer["progress"])
            else:
                found = answer
        else:
            answer = {"ended": self.process.wait()}
        if found:
            return found
        self.log.seek(0)
        said = [line.strip() for line in self.log if line.strip()] or ["no output"]
        return {"traceback": "\n".join([*said, f"the compiler's process ended with {answer['ended']}"])}

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with the fork that compiles
        self.process.communicate()

    def _send(self, message: object) -> None:
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()


_compilers: dict[tuple, _Compiler] = {}  # one at most, by what it was started with
_one_at_a_time = threading.Lock()


def _run(request: Request, show: Callable[[str], None]) -> dict:
    """The fields of the worker's report."""
    started_with = START, os.getcwd(), tuple(sys.path), tuple(sorted(settings().items()))
    with _one_at_a_time:
        if started_with not in _compilers or _compilers[started_with].process.poll() is not None:
            _stop()
            show("starting Keras on JAX")
            _compilers[started_with] = _Compiler()
        try:
            answer = _compilers[started_with].ask(request, show)
        except BaseException:  # interrupted: the next request would read this one's answers
            _stop()
            raise
    if "error" in answer:
        raise CourseError(answer["error"])
    if "traceback" in answer:
        raise StepFailed(request, answer["traceback"])
    return answer["report"]


@atexit.register
def _stop() -> None:
    while _compilers:
        _compilers.popitem()[1].stop()


def _reason(traceback: str) -> str:
    """The exception's own line; Keras and JAX print others around it, some in colour."""
    lines = [line.strip() for line in re.sub(r"\x1b\[\d*m", "", traceback).splitlines() if line.strip()]
    raised = [n for n, line in enumerate(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)] or [len(lines) - 1]
    words = lines[raised[-1]]
    return f"{words} {lines[raised[-1] + 1]}" if words.endswith(".call().") else words


def _as_data(model, arguments: Mapping[str, object]) -> dict:
    if isinstance(model, str) and (model in MODELS or ":" not in model):
        return named_model(model, arguments)
    if hasattr(model, "to_json"):
        return {"json": model.to_json()}
    program = WorkerProgram.of(model)
    return {"program": asdict(program), "arguments": dict(arguments)}


def _serialized(named, kind: str):
    """A name unchanged, one of Keras' objects as Keras serializes it."""
    if isinstance(named, (str, dict)):
        return named
    import keras

    return getattr(keras, kind).serialize(named)
