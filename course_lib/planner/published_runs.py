"""Published runs read from a table and predicted, row by row. Standard library only; taught in notebooks/10.

The columns are those of runs.csv beside this module. `read_run` fills in what a row does not say; rows that
still lack something are not predicted.
"""

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.planner.calibration import Calibration
from course_lib.planner.layout import Layout
from course_lib.planner.memory import memory
from course_lib.planner.rented_chips import CHIPS, GIB, Chip, Cluster
from course_lib.planner.step_time import step_time
from course_lib.planner.transformer import Transformer

PUBLISHED = Path(__file__).with_name("runs.csv")
WHOLE = ("layers", "hidden", "heads", "ffn", "vocab", "seq_len")
NUMBERS = ("params_B", *WHOLE, "n_chips", "dp", "tp", "pp", "microbatch", "global_batch")
NEEDED = (*NUMBERS, "model", "chip", "cp_or_sp", "recompute", "zero_stage/fsdp", "precision")
PREDICTED = ("predicted_mem_GiB", "predicted_step_time_s")
EXPERTS = ("moe", "mixtral", "deepseek")
PLAIN_ENOUGH = 0.05  # another architecture is tried where a plain one misses the parameters by more than this share


@dataclass(frozen=True)
class PublishedRun:
    """A row that says enough to be predicted.

    allocated  True when its memory is what the framework's allocator gave out, without the runtime's own
    """

    model: Transformer
    cluster: Cluster
    layout: Layout
    global_batch: int
    allocated: bool


def read_run(row: Mapping[str, str]) -> PublishedRun | None:
    """A row as model, cluster and layout, or None when it lacks what a prediction needs.

    What is filled in: 128 units per head; layers from the parameters; a feed-forward layer of 4 h; a gated,
    untied or grouped architecture when it explains the number of parameters and the plain one does not;
    replicas from the chips; no recomputation and no ZeRO where nothing is said. Runs on A100 and before with
    neither FSDP nor a gated layer store their attention's scores and use dropout, as Megatron did until 2022.
    Mixtures of experts are not predicted.
    Raises  CourseError naming the column whose number cannot be read
    """
    number = {name: _number(row, name) for name in NUMBERS}
    for name in WHOLE:
        if number[name] and number[name] % 1:
            raise CourseError(f"column {name} holds {row[name].strip()!r}, which is not a whole number.")
    chip = _chip(row["chip"])
    experts = any(word in row["model"].lower() for word in EXPERTS)
    if chip is None or experts or not all(number[name] for name in ("hidden", "vocab", "seq_len", "microbatch")):
        return None
    layout = _layout(row, number, chip)
    shape = _shape(number)
    if layout is None or shape is None:
        return None
    flash = shape["gated"] or layout.zero == 3 or chip.family not in ("volta", "ampere")
    together = layout.data * layout.micro_batch
    batch = number["global_batch"] or together * layout.pipeline
    rounded = together * max(1, round(batch / together))
    model = Transformer(**shape, flash=flash, dropout=not flash)
    allocated = "nvidia-smi" not in row.get("note", "")
    return PublishedRun(model, Cluster(chip, layout.chips), layout, rounded, allocated)


def predict_row(run: PublishedRun, constants: Calibration) -> tuple[float, float]:
    """Memory in GiB of the fullest device, and seconds of a step."""
    chain = run.model.chain()
    need = memory(chain, run.layout, run.global_batch, constants)
    total = need.total - (need.framework if run.allocated else 0)
    return total / GIB, step_time(chain, run.cluster, run.layout, run.global_batch, constants).total


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a table with the columns of runs.csv.

    Raises  CourseError when it cannot be read or lacks columns
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            rows = [{name: row[name] or "" for name in columns} for row in reader]  # a short row ends in None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CourseError(f"{path} cannot be read as a table: {error}.") from None
    if missing := ", ".join(name for name in NEEDED if name not in columns):
        raise CourseError(f"{path} lacks the column(s) {missing}; `course plan --table` needs {', '.join(NEEDED)}.")
    return rows


def fill(rows: list[dict[str, str]], constants: Calibration) -> Iterator[tuple[dict[str, str], str | None]]:
    """Each row with its predictions, empty where the row lacks something, and what is wrong with it or None."""
    for number, row in enumerate(rows, 2):  # numbered as an editor numbers lines: the header is the first
        values, complaint = ("", ""), None
        try:
            run = read_run(row)
            if run is not None:
                gib, seconds = (f"{value:.5g}" for value in predict_row(run, constants))
                values = gib, seconds if _number(row, "global_batch") else ""  # memory needs no global batch
        except CourseError as error:
            complaint = f"row {number}: {error}"
        yield {**row, **dict(zip(PREDICTED, values))}, complaint


def _number(row: Mapping[str, str], column: str) -> float | None:
    text = (row[column] or "").strip()
    try:
        number = float(text) if text else None
    except ValueError:
        number = math.nan
    if number is not None and not 0 <= number < math.inf:
        raise CourseError(f"column {column} holds {text!r}, which is not a number of at least 0.")
    return number


def _chip(name: str) -> Chip | None:
    """The chip of a name such as "A100-80GB (Selene)"; the smallest of its kind when the name has no size."""
    plain = re.sub(r"\(.*", "", name.lower()).strip().replace("_", "-").replace(" ", "-").replace("-sxm2", "")
    return next((chip for known, chip in CHIPS.items() if known == plain or known.startswith(f"{plain}-")), None)


def _layout(row: Mapping[str, str], number: Mapping[str, float | None], chip: Chip) -> Layout | None:
    tensor, pipeline = int(number["tp"] or 1), int(number["pp"] or 1)
    words = (row["cp_or_sp"] or "").lower()
    context = re.search(r"cp(\d+)", words)
    sequence = int(context[1]) if context else 1
    data = int(number["dp"] or (number["n_chips"] or 0) / (tensor * pipeline * sequence))
    stage = re.match(r"\d", row["zero_stage/fsdp"] or "")
    chunks = re.search(r"(?:interleaving|VP) (\d+)", row.get("note", ""))
    if data < 1 or number["microbatch"] % 1 or (number["tp"] is None and number["n_chips"] != data):
        return None
    return Layout(
        data,
        tensor,
        pipeline,
        sequence,
        int(number["microbatch"]),
        recompute=_recompute(row["recompute"]),
        zero=int(stage[0]) if stage else 3 * ("fsdp" in (row["zero_stage/fsdp"] or "").lower()),
        precision=_precision(row["precision"], chip),
        interleave=int(chunks[1]) if chunks and pipeline > 1 else 1,
        split_norms=words.startswith("sp"),
        keep_gathered="reduce_scatter" in words,
    )


def _recompute(text: str) -> str:
    if "full" in text.lower():
        return "full"
    return "selective" if "selective" in text.lower() or "custom" in text.lower() else "none"


def _precision(text: str, chip: Chip) -> str:
    """Keras calls amp and float32 weights mixed; plain bf16 and fp16 keep a master copy."""
    words = text.lower()
    if "fp8" in words and "float8" in chip.flops_per_second:
        return "float8_master"
    if "fp16" in words or "bfloat16" not in chip.flops_per_second:
        return "float16_master"
    return "mixed_bfloat16" if "amp" in words or "fp32 weights" in words else "bfloat16_master"


def _shape(number: Mapping[str, float | None]) -> dict | None:
    """Arguments of a Transformer whose number of parameters is near the table's."""
    hidden, given = int(number["hidden"]), (number["params_B"] or 0) * 1e9
    heads = int(number["heads"] or max(1, hidden // 128))
    layers = number["layers"] or round((given - number["vocab"] * hidden) / (12 * hidden**2))
    if layers < 1:
        return None
    shape = {"layers": int(layers), "hidden": hidden, "heads": heads, "vocabulary": int(number["vocab"])}
    shape |= {"sequence_length": int(number["seq_len"]), "ffn": int(number["ffn"] or 4 * hidden)}
    groups = [heads, 8] if heads > 8 and heads % 8 == 0 else [heads]
    kinds = [{"gated": g, "tied": t, "kv_heads": k} for g in (False, True) for t in (True, False) for k in groups]

    def miss(kind: dict) -> float:
        return abs(Transformer(**shape, **kind).parameters / given - 1)

    if given and number["layers"] and miss(kinds[0]) > PLAIN_ENOUGH:
        return shape | min(kinds, key=miss)
    return shape | kinds[0]
