"""The planner's few constants, fitted by calibrate.py on published runs alone.

Standard library only; taught in notebooks/10.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FITTED = Path(__file__).with_name("calibration.json")  # written by `python -m course_lib.planner.calibrate`


@dataclass(frozen=True)
class Calibration:
    """What formulas alone cannot know.

    matrix              share of its peak that a chip family reaches in matrix products
    float8              of that share, what float8 products reach
    attention           share of the peak that a fused attention reaches, all scores counted
    traffic             numbers that a GPU reads and writes per number kept, in one pass over a block
    traffic_tpu         the same on a TPU, whose compiler fuses what it can
    link                share of a link's peak that collectives reach
    data_exposed        share of the data-parallel communication that nothing hides
    launch              seconds between the starts of two operations where Python starts each
    launch_compiled     the same in a compiled step: about a CUDA kernel's, not fitted
    latency             seconds of an all-reduce of nothing in a tensor-parallel group
    fragmentation       memory that activations take, over the formulas' figure
    framework_bytes     the runtime's own, per device that communicates
    memory_low, memory_high, time_low, time_high
                        measured over predicted on sources left out of the fit: 8 runs in 10 lie between
    """

    matrix: Mapping[str, float]
    float8: float
    attention: float
    traffic: float
    traffic_tpu: float
    link: float
    data_exposed: float
    launch: float
    latency: float
    fragmentation: float
    framework_bytes: float
    launch_compiled: float = 5e-6
    memory_low: float = 1.0
    memory_high: float = 1.0
    time_low: float = 1.0
    time_high: float = 1.0


def fitted() -> Calibration:
    """The constants as stored in calibration.json."""
    return Calibration(**_stored()["constants"])


def chips_of_runs() -> frozenset[str]:
    """Names of the chips whose published runs the constants and the intervals come from."""
    return frozenset(_stored()["chips"])


@functools.cache
def _stored() -> dict:
    return json.loads(FITTED.read_text())
