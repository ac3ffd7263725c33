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
from course_lib.planner.published_runs import (
    PUBLISHED,
    SINGLE_NODE,
    PublishedRun,
    read_run,
    read_table,
    row_gib,
    row_seconds,
)
from course_lib.planner.rented_chips import GIB
from course_lib.waiting import waiting

FAMILIES = ("volta", "ampere", "hopper", "tpu")
# Where the search begins, and what stays when no row says more. The framework's own: 1.6 GB of context (BLOOM's
# notes), two of DeepSpeed's default buckets of 5e8 numbers, and about 1.5 GiB for its four kinds of communicators.
SHARES = {"float8": 0.7, "attention": 0.5, "link": 0.7, "data_exposed": 0.3}
TRAFFIC = {"traffic": 2.0, "traffic_tpu": 1.0}
MEMORY = {"fragmentation": 1.1, "framework_bytes": 5 * GIB}
# PyTorch takes some ten microseconds to start an operation, and its autograd as much again; NCCL's all-reduce of
# nothing takes about twenty.
STARTS = {"launch": 3e-5, "latency": 2e-5}
START = Calibration(matrix=dict.fromkeys(FAMILIES, 0.7), **SHARES, **TRAFFIC, **MEMORY, **STARTS)
MOST = dict.fromkeys((*SHARES, *FAMILIES), 1.0)
LEAST = {"fragmentation": 1.0}
NAMES = {"memory": tuple(MEMORY), "time": (*FAMILIES, *SHARES, *TRAFFIC, *STARTS)}
MOST_ROWS = 60  # of one source whose times the fit sees, evenly spaced, so that no team outvotes the others
# Standard deviations of logarithms: of a constant around its start, of a run around its source, and of a source's
# offset. Memory is arithmetic, and sources differ little; speed is their network, their kernels and their settings.
PREDICTED = {"memory": row_gib, "time": row_seconds}
ENOUGH = {"max_nfev": 40, "ftol": 1e-4}  # three digits are stored
STEP = 1e-7  # of a difference quotient, in logarithms of constants
PRIOR, NOISE, OFFSETS = 0.5, 0.05, {"memory": 0.03, "time": 0.15}


@dataclass(frozen=True)
class Sample:
    """One measured figure: memory in GiB, or seconds of a step."""

    source: str
    run: PublishedRun
    measured: float


def published() -> dict[str, list[Sample]]:
    """The samples of both tables that the course carries."""
    return samples([*read_table(PUBLISHED), *read_table(SINGLE_NODE)])


def plain_seconds(run: PublishedRun) -> float:
    """What people take without a planner: 6 or, with recomputation, 8 operations per parameter and token, at 40%."""
    rates, tokens = run.cluster.chip.flops_per_second, run.global_batch * run.model.sequence_length
    work = (8 if run.layout.recompute == "full" else 6) * run.model.parameters * tokens
    return work / (run.layout.chips * rates.get("bfloat16", rates.get("float16")) * 0.4)


def plain_gib(run: PublishedRun) -> float:
    """16 bytes a parameter, divided as ZeRO says, and nothing else."""
    layout, shards = run.layout, [run.layout.replicas if run.layout.zero >= stage else 1 for stage in (1, 2, 3)]
    size = 12 / shards[0] + 2 / shards[1] + 2 / shards[2]
    return run.model.parameters / layout.tensor / layout.pipeline * size / GIB


BASELINES = {"memory": plain_gib, "time": plain_seconds}


def samples(rows: Sequence[Mapping[str, str]]) -> dict[str, list[Sample]]:
    """The rows that say all that a prediction needs: "memory" and "time".

    For a step's time the row must state its layout; where it says nothing of recomputation or ZeRO, there is none.
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
        if seconds and all(row[name] for name in ("layers", "heads", "global_batch")):
            found["time"].append(Sample(row["source"], run, seconds))
    return found


def fit(found: Mapping[str, Sequence[Sample]]) -> Calibration:
    """The constants that fit the samples best."""
    return _fit({"time": _thinned(found["time"])}, "time", _fit(found, "memory", START))


def _thinned(found: Sequence[Sample]) -> list[Sample]:
    by_source = {}
    for sample in found:
        by_source.setdefault(sample.source, []).append(sample)
    return [one for own in by_source.values() for one in own[:: math.ceil(len(own) / MOST_ROWS)]]


def left_out(found: Mapping[str, Sequence[Sample]]) -> dict[str, dict[str, list[float]]]:
    """Measured over predicted for each source, by constants fitted without it: kind to source to ratios."""
    ratios = {kind: {} for kind in found}
    for source in dict.fromkeys(sample.source for kind in found.values() for sample in kind):
        others = {kind: [sample for sample in found[kind] if sample.source != source] for kind in found}
        constants = fit(others)
        for kind, predicted in PREDICTED.items():
            own = [sample for sample in found[kind] if sample.source == source]
            if own:
                ratios[kind][source] = [one.measured / predicted(one.run, constants) for one in own]
    return ratios


def errors(ratios: Sequence[float]) -> tuple[float, float]:
    """Median and 90th percentile of |predicted / measured - 1|, from measured over predicted."""
    missed = [abs(1 / ratio - 1) for ratio in ratios]
    return statistics.median(missed), float(np.quantile(missed, 0.9))


def interval(of_kind: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Between which ratios 8 of 10 runs of a new source should lie: every known source counts the same."""
    ratios = [(ratio, 1 / len(own) / len(of_kind)) for own in of_kind.values() for ratio in own]
    values, weights = np.array(sorted(ratios)).T
    low, high = np.interp([0.1, 0.9], np.cumsum(weights) - weights / 2, values)
    return float(low), float(high)


def coverage(of_kind: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The share of each source's runs inside the interval that the other sources make."""
    shares = {}
    for source, own in of_kind.items():
        low, high = interval({other: ratios for other, ratios in of_kind.items() if other != source})
        shares[source] = statistics.mean(low <= ratio <= high for ratio in own)
    return shares


def report(found: Mapping[str, Sequence[Sample]]) -> dict:
    """What calibration.json holds.

    Returns  "constants" fitted on all samples; "chips" of the samples, by name; "left_out", kind to source to [runs,
             median error, 90th percentile, share inside the interval that the other sources make, and the baseline's
             two errors]
    """
    return summary(fit(found), left_out(found), found)


def summary(fitted: Calibration, ratios: Mapping[str, dict[str, list[float]]], found) -> dict:
    constants, shown = _rounded(asdict(fitted)), {}
    for kind, of_kind in ratios.items():
        inside, plain = coverage(of_kind), {}
        for one in found[kind]:
            plain.setdefault(one.source, []).append(one.measured / BASELINES[kind](one.run))
        shown[kind] = {
            source: [len(own), *(round(x, 4) for x in (*errors(own), inside[source], *errors(plain[source])))]
            for source, own in of_kind.items()
        }
        every, every_plain = (sum(each.values(), []) for each in (of_kind, plain))
        figures = (*errors(every), statistics.mean(inside.values()), *errors(every_plain))
        shown[kind]["all"] = [len(every), *(round(x, 4) for x in figures)]
        low, high = interval(of_kind)
        constants |= {f"{kind}_low": round(low, 3), f"{kind}_high": round(high, 3)}
    chips = {sample.run.cluster.chip.name for of_kind in found.values() for sample in of_kind}
    return {"constants": constants, "chips": sorted(chips), "left_out": shown}


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the planner's constants on published runs.")
    parser.add_argument("--store", action="store_true", help="write calibration.json")
    arguments = parser.parse_args()
    with waiting("fitting, a minute"):
        fresh = report(published())
    for kind, of_kind in fresh["left_out"].items():
        print(f"{kind}: errors on sources left out of the fit")
        for source, (runs, median, most, inside, plain, _) in of_kind.items():
            print(
                f"  {source[:40]:40} {runs:4} runs  median {median:4.0%}  90th percentile {most:4.0%}  "
                f"inside {inside:4.0%}  baseline {plain:4.0%}"
            )
    print(json.dumps(fresh["constants"], indent=1))
    if arguments.store:
        FITTED.write_text(json.dumps(fresh, indent=1) + "\n")


def _fit(found: Mapping[str, Sequence[Sample]], kind: str, start: Calibration) -> Calibration:
    known, names, predicted = found[kind], NAMES[kind], PREDICTED[kind]
    sources = sorted({sample.source for sample in known})
    begin = np.array([({**vars(start), **start.matrix})[name] for name in names])

    def residuals(unknown: np.ndarray) -> np.ndarray:
        constants = _with(start, names, begin * np.exp(unknown[: len(names)]))
        offsets = dict(zip(sources, unknown[len(names) :]))
        misses = [math.log(s.measured / predicted(s.run, constants)) - offsets[s.source] for s in known]
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
    solved = least_squares(residuals, np.zeros(len(names) + len(sources)), jacobian, bounds, loss="soft_l1", **ENOUGH)
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
