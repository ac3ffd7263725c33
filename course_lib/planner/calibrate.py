"""Fits the planner's constants on published runs, and leaves each source out in turn.

Needs SciPy; taught in notebooks/10.

    python -m course_lib.planner.calibrate            # print the errors on sources that were left out
    python -m course_lib.planner.calibrate --store    # and write calibration.json

Each source (a team on its cluster, with its software) gets its own offset beside the shared constants, drawn
towards zero. So one team's slow network does not become everybody's, and a source that is not in the fit is
predicted without any offset.
"""

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from course_lib.errors import CourseError
from course_lib.planner.calibration import FITTED, Calibration
from course_lib.planner.published_runs import PUBLISHED, PublishedRun, predict_row, read_run, read_table
from course_lib.planner.rented_chips import GIB
from course_lib.waiting import waiting

FAMILIES = ("volta", "ampere", "hopper", "tpu")
# Where the search begins, and what stays when no row says more. The framework's own: 1.6 GB of context (BLOOM's
# notes), two of DeepSpeed's default buckets of 5e8 numbers, and about 1.5 GiB for its four kinds of communicators.
SHARES = {"float8": 0.7, "attention": 0.5, "link": 0.7, "data_exposed": 0.3}
TRAFFIC = {"traffic": 2.0, "traffic_tpu": 1.0}
MEMORY = {"fragmentation": 1.1, "framework_bytes": 5 * GIB}
START = Calibration(matrix=dict.fromkeys(FAMILIES, 0.7), **SHARES, **TRAFFIC, **MEMORY)
MOST = dict.fromkeys((*SHARES, *FAMILIES), 1.0)
LEAST = {"fragmentation": 1.0}
NAMES = {"memory": tuple(MEMORY), "time": (*FAMILIES, *SHARES, *TRAFFIC)}
# Standard deviations of logarithms: of a constant around its start, of a run around its source, and of a source's
# offset. Memory is arithmetic, and sources differ little; speed is their network, their kernels and their settings.
STEP = 1e-7  # of a difference quotient, in logarithms of constants
PRIOR, NOISE, OFFSETS = 0.5, 0.05, {"memory": 0.03, "time": 0.15}


@dataclass(frozen=True)
class Sample:
    """One measured figure: memory in GiB, or seconds of a step."""

    source: str
    run: PublishedRun
    measured: float


def samples(rows: Sequence[Mapping[str, str]]) -> dict[str, list[Sample]]:
    """The rows that say all that a prediction needs: "memory" and "time".

    For a step's time the row must state the whole layout, with recomputation and, for replicas, the ZeRO stage.
    A stated share of the peak is turned into a time.
    """
    found = {"memory": [], "time": []}
    for row in rows:
        try:
            run = read_run(row)
        except CourseError:
            continue
        if run is None:
            continue
        if row["mem_GiB"] and row["layers"] and "NOT a measurement" not in row["note"]:
            found["memory"].append(Sample(row["source"], run, float(row["mem_GiB"])))
        seconds = _seconds(row, run)
        printed = all(row[name] for name in ("layers", "heads", "recompute", "global_batch"))
        if seconds and printed and (row["zero_stage/fsdp"] or run.layout.data == 1):
            found["time"].append(Sample(row["source"], run, seconds))
    return found


def fit(found: Mapping[str, Sequence[Sample]]) -> Calibration:
    """The constants that fit the samples best."""
    return _fit(found, "time", _fit(found, "memory", START))


def left_out(found: Mapping[str, Sequence[Sample]]) -> dict[str, dict[str, list[float]]]:
    """Measured over predicted for each source, by constants fitted without it: kind to source to ratios."""
    ratios = {kind: {} for kind in found}
    for source in dict.fromkeys(sample.source for kind in found.values() for sample in kind):
        others = {kind: [sample for sample in found[kind] if sample.source != source] for kind in found}
        constants = fit(others)
        for place, kind in enumerate(("memory", "time")):
            own = [sample for sample in found[kind] if sample.source == source]
            if own:
                ratios[kind][source] = [one.measured / predict_row(one.run, constants)[place] for one in own]
    return ratios


def errors(ratios: Sequence[float]) -> tuple[float, float]:
    """Median and 90th percentile of |predicted / measured - 1|, from measured over predicted."""
    missed = [abs(1 / ratio - 1) for ratio in ratios]
    return statistics.median(missed), float(np.quantile(missed, 0.9))


def report(found: Mapping[str, Sequence[Sample]]) -> dict:
    """What calibration.json holds.

    Returns  "constants" fitted on all samples; "left_out", kind to source to [runs, median error, 90th percentile]
    """
    constants, shown = _rounded(asdict(fit(found))), {}
    for kind, of_kind in left_out(found).items():
        every = {**of_kind, "all": [ratio for own in of_kind.values() for ratio in own]}
        shown[kind] = {source: [len(own), *(round(error, 4) for error in errors(own))] for source, own in every.items()}
        low, high = np.quantile(every["all"], [0.1, 0.9])
        constants |= {f"{kind}_low": round(float(low), 3), f"{kind}_high": round(float(high), 3)}
    return {"constants": constants, "left_out": shown}


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the planner's constants on published runs.")
    parser.add_argument("--store", action="store_true", help="write calibration.json")
    arguments = parser.parse_args()
    with waiting("fitting, some minutes"):
        fresh = report(samples(read_table(PUBLISHED)))
    for kind, of_kind in fresh["left_out"].items():
        print(f"{kind}: errors on sources left out of the fit")
        for source, (runs, median, most) in of_kind.items():
            print(f"  {source[:48]:48} {runs:4} runs  median {median:5.1%}  90th percentile {most:5.1%}")
    print(json.dumps(fresh["constants"], indent=1))
    if arguments.store:
        FITTED.write_text(json.dumps(fresh, indent=1) + "\n")


def _fit(found: Mapping[str, Sequence[Sample]], kind: str, start: Calibration) -> Calibration:
    known, names, place = found[kind], NAMES[kind], list(NAMES).index(kind)
    sources = sorted({sample.source for sample in known})
    begin = np.array([({**vars(start), **start.matrix})[name] for name in names])

    def residuals(unknown: np.ndarray) -> np.ndarray:
        constants = _with(start, names, begin * np.exp(unknown[: len(names)]))
        offsets = dict(zip(sources, unknown[len(names) :]))
        misses = [math.log(s.measured / predict_row(s.run, constants)[place]) - offsets[s.source] for s in known]
        priors = unknown[: len(names)] / PRIOR, unknown[len(names) :] / OFFSETS[kind]
        return np.concatenate([np.array(misses) / NOISE, *priors])

    def jacobian(unknown: np.ndarray) -> np.ndarray:
        """By differences for the constants alone: an offset moves its source's residuals one to one."""
        here = residuals(unknown)
        steps = STEP * np.eye(len(unknown))[: len(names)]
        of_constants = [(residuals(unknown + step) - here) / STEP for step in steps]
        of_offsets = np.zeros((len(here), len(sources)))
        for row, sample in enumerate(known):
            of_offsets[row, sources.index(sample.source)] = -1 / NOISE
        of_offsets[len(known) + len(names) :] = np.eye(len(sources)) / OFFSETS[kind]
        return np.column_stack([*of_constants, of_offsets])

    free = [math.inf] * len(sources)
    least = [math.log(LEAST[name] / value) if name in LEAST else -math.inf for name, value in zip(names, begin)]
    most = [math.log(MOST.get(name, math.inf) / value) for name, value in zip(names, begin)]
    bounds = ([*least, *np.negative(free)], [*most, *free])
    solved = least_squares(residuals, np.zeros(len(names) + len(sources)), jacobian, bounds, loss="soft_l1")
    return _with(start, names, begin * np.exp(solved.x[: len(names)]))


def _with(constants: Calibration, names: Sequence[str], values: Sequence[float]) -> Calibration:
    given = dict(zip(names, map(float, values)))
    matrix = {family: given.pop(family, share) for family, share in constants.matrix.items()}
    return replace(constants, matrix=matrix, **given)


def _rounded(constants: dict) -> dict:
    """To three digits: the fit is not more precise."""
    return {k: _rounded(value) if isinstance(value, dict) else float(f"{value:.3g}") for k, value in constants.items()}


def _seconds(row: Mapping[str, str], run: PublishedRun) -> float | None:
    """The row's figure, or a time from its share of the peak in model FLOPs (three forward passes)."""
    if row["step_time_s"]:
        return float(row["step_time_s"])
    peak = run.cluster.chip.flops_per_second.get("bfloat16")
    if not row["mfu"] or not peak:
        return None
    return 3 * run.model.chain().flops * run.global_batch / (run.layout.chips * peak * float(row["mfu"]))


if __name__ == "__main__":
    main()
