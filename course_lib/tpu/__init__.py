"""A Keras train step compiled for TPUs that this machine does not have; taught in notebooks/05."""

from course_lib.tpu.chips import CHIPS, Slice, TpuChip, find_slice, names
from course_lib.tpu.compile_client import NoCompiler, compile_step, require_compiler, store, stored
from course_lib.tpu.compile_report import Collective, CompiledMemory, CompileReport, Shortage

__all__ = ["CHIPS", "Collective", "CompileReport", "CompiledMemory", "NoCompiler", "Shortage", "Slice", "TpuChip"]
__all__ += ["compile_step", "find_slice", "names", "require_compiler", "store", "stored"]
