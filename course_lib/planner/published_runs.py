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
from course_lib.planner.rented_chips import CHIPS, GIB, TPU, Chip, Cluster
from course_lib.planner.step_time import step_time
from course_lib.planner.transformer import Transformer

PUBLISHED = Path(__file__).with_name("runs.csv")
SINGLE_NODE = Path(__file__).with_name("vtrain_single.csv")  # small models on one node, with the same columns
WHOLE = ("layers", "hidden", "heads", "ffn", "vocab", "seq_len")
NUMBERS = ("params_B", *WHOLE, "n_chips", "dp", "tp", "pp", "microbatch", "global_batch")
NEEDED = (*NUMBERS, "model", "chip", "cp_or_sp", "recompute", "zero_stage/fsdp", "precision")
PREDICTED = ("predicted_mem_GiB", "predicted_step_time_s")
WHY_NOT = "not_predicted_because"
EXPERTS = re.compile(r"moe|mixtral|deepseek|-a\d+(\.\d+)?b\b")  # as in Qwen3-30B-A3B
RECOMPUTED = {"full": "full", "selective": "selective", "custom": "selective", "none": "none", "no": "none", "": "none"}
USUAL = {"v100": "v100-32gb", "a100": "a100-80gb", "h100": "h100-80gb"}  # the most sold
WHOLE_LOGITS = 16_384  # tokens on a device from which on nobody holds the logits whole
MOST_APART = 1.5  # parameters that are stated, and those that the dimensions make: embeddings are counted or not
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
    experts = EXPERTS.search(row["model"].lower())
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
    return row_gib(run, constants), row_seconds(run, constants)


def row_gib(run: PublishedRun, constants: Calibration) -> float:
    need = memory(run.model.chain(), run.layout, run.global_batch, constants)
    return (need.total - (need.framework if run.allocated else 0)) / GIB


def row_seconds(run: PublishedRun, constants: Calibration) -> float:
    return step_time(run.model.chain(), run.cluster, run.layout, run.global_batch, constants).total


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
    """Each row with its predictions, or why it has none, and what is wrong with it or None."""
    for number, row in enumerate(rows, 2):  # numbered as an editor numbers lines: the header is the first
        values, why_not, complaint = ("", ""), "", None
        try:
            run = read_run(row)
            if run is None:
                why_not = _what_is_missing(row)
            else:
                _require_consistent(row, run)
                gib, seconds = (f"{value:.5g}" for value in predict_row(run, constants))
                timed = _number(row, "global_batch")  # memory needs none
                values, why_not = (gib, seconds if timed else ""), "" if timed else "a step's time needs a global_batch"
        except CourseError as error:
            why_not, complaint = str(error), f"row {number}: {error}"
        yield {**row, **dict(zip(PREDICTED, values)), WHY_NOT: why_not}, complaint


def _what_is_missing(row: Mapping[str, str]) -> str:
    """Why read_run gives None, in one line."""
    if not row["chip"].strip():
        return "it names no chip"
    if _chip(row["chip"]) is None:
        return f"no chip is called {row['chip'].strip()!r}; `course plan --help` names them"
    if EXPERTS.search(row["model"].lower()):
        return "mixtures of experts are not planned"
    if missing := [name for name in ("hidden", "vocab", "seq_len", "microbatch") if not _number(row, name)]:
        return f"it does not say {', '.join(missing)}"
    if not _number(row, "layers") and not _number(row, "params_B"):
        return "it says neither layers nor params_B"
    return "its chips do not make whole replicas: give n_chips, and dp, tp and pp whose product they are"


def _require_consistent(row: Mapping[str, str], run: PublishedRun) -> None:
    """Raise CourseError where a row says two things that can't both be."""
    chips, batch, given = (_number(row, name) for name in ("n_chips", "global_batch", "params_B"))
    layout, counted = run.layout, run.model.parameters / 1e9
    if chips and chips != layout.chips:
        raise CourseError(f"n_chips is {chips:g}, and dp, tp, pp and cp multiply to {layout.chips}.")
    if run.model.heads % layout.tensor:
        raise CourseError(f"tp is {layout.tensor}, which does not divide {run.model.heads} heads.")
    if batch and batch != run.global_batch:
        together = layout.data * layout.micro_batch
        raise CourseError(f"global_batch is {batch:g}, which {layout.data} x microbatch, {together}, does not divide.")
    if given and not 1 / MOST_APART < counted / given < MOST_APART:
        raise CourseError(f"params_B is {given:g}, and the dimensions make {counted:.3g} billion parameters.")


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
    """The chip of a name such as "A100-80GB (Selene)", and the usual one of its kind when the name has no size."""
    plain = re.sub(r"\(.*|-sxm\d|(?<=gb).*", "", name.lower()).strip().replace("_", "-").replace(" ", "-")
    plain = USUAL.get(plain, plain.replace("rtx-", "rtx"))
    return next((chip for known, chip in CHIPS.items() if known == plain or known.startswith(f"{plain}-")), None)


def _layout(row: Mapping[str, str], number: Mapping[str, float | None], chip: Chip) -> Layout | None:
    tensor, pipeline = int(number["tp"] or 1), int(number["pp"] or 1)
    words = (row["cp_or_sp"] or "").lower()
    context = re.search(r"cp(\d+)", words)
    sequence = int(context[1]) if context else 1
    data = int(number["dp"] or (number["n_chips"] or 0) / (tensor * pipeline * sequence))
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
        zero=_zero(row["zero_stage/fsdp"] or ""),
        precision=_precision(row["precision"], chip, f"{row.get('source', '')} {row.get('note', '')}".lower()),
        interleave=int(chunks[1]) if chunks and pipeline > 1 else 1,
        # Megatron's default since 2023, unless the row says 1.
        split_norms=words.startswith("sp") or tensor > 1 and chip.family == "hopper" and words.strip() != "1",
        keep_gathered="reduce_scatter" in words,
        chunked_loss=(number["seq_len"] or 0) / sequence >= WHOLE_LOGITS,
    )


def _zero(text: str) -> int:
    words = text.strip().lower()
    stage = re.match(r"(?:zero|stage)?[-_ ]*([0-3])\b", words)
    if "offload" in words or not (stage or "fsdp" in words or not words):
        raise CourseError(f"column zero_stage/fsdp holds {text.strip()!r}, which is no ZeRO stage from 0 to 3.")
    return int(stage[1]) if stage else 3 * ("fsdp" in words)


def _recompute(text: str) -> str:
    word = re.match(r"\w*", text.strip().lower())[0]
    if word not in RECOMPUTED:
        raise CourseError(f"column recompute holds {text.strip()!r}: say none, selective or full.")
    return RECOMPUTED[word]


def _precision(text: str, chip: Chip, about: str) -> str:
    """The stack's bytes per parameter, from the words for the precision and what the row says about its source.

    amp and float32 weights are FSDP's, or on a TPU and in MaxText those of one compiled program.
    """
    words = text.lower()
    if words and not re.search("fp8|float8|fp16|float16|bf16|mixed|amp|fp32|float32|tf32|default", words):
        raise CourseError(f"column precision holds {text.strip()!r}: say fp32, fp16, bf16 or fp8.")
    if re.match(r"\W*(fp32|float32|tf32)", words):
        return "float32"
    if "fp8" in words and "float8" in chip.flops_per_second:
        return "float8_fsdp" if "amp" in words else "float8_megatron"
    if "bfloat16" not in chip.flops_per_second or "fp16" in words and "bf16" not in words:
        return "float16_master"
    if chip.family == TPU or "fp32 weights" in words:
        return "mixed_bfloat16"
    if "amp" in words:
        return "bfloat16_fsdp"
    if "fp32 grad" in words or "nanotron" in about or "bloom" in about:
        return "bfloat16_master"
    return "bfloat16_megatron" if re.search("megatron|nemo", about) else "bfloat16_deepspeed"


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
