"""A Keras train step compiled for TPUs that are not there; taught in notebooks/05."""

from course_lib.tpu.chips import CHIPS, Chip, Slice, find_slice, names
from course_lib.tpu.compile_report import Collective, Memory, Report, Shortage
from course_lib.tpu.compiling import NoCompiler, compile_step, require_compiler, store, stored
from course_lib.tpu.find_fit import Search, Trial, find_fit

__all__ = [
    "CHIPS",
    "Chip",
    "Collective",
    "Memory",
    "NoCompiler",
    "Report",
    "Shortage",
    "Slice",
    "compile_step",
    "find_slice",
    "names",
]
__all__ += ["Search", "Trial", "find_fit", "require_compiler", "store", "stored"]
