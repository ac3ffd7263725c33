"""Number formats you can measure, and the two checks that mixed precision needs; taught in notebooks/09.

Needs NumPy and ml_dtypes, which TensorFlow and JAX bring; Keras where a policy
or a model is asked. A format's figures come from ml_dtypes; TF32's follow from
float32's, because it is float32 with a shorter mantissa.
"""

import dataclasses
import warnings
from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np

from course_lib.errors import CourseError

TF32_MANTISSA_BITS = 10  # NVIDIA (2020), A100 Tensor Core GPU architecture: float32's exponent, float16's mantissa
LESSON = "lesson 09"


@dataclass(frozen=True)
class Format:
    """A floating-point format: (-1)^sign * 2^exponent * (1 + mantissa / 2^mantissa_bits).

    stored              the dtype that holds its numbers; TF32 is stored as float32
    bits                that a number takes in memory
    smallest_normal     numbers below it have fewer significant bits
    smallest_subnormal  the smallest number above zero
    epsilon             the distance between 1 and the next larger number
    """

    name: str
    stored: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    largest: float
    smallest_normal: float
    smallest_subnormal: float
    epsilon: float

    @cached_property
    def _unused_bits(self) -> int:
        return ml_dtypes.finfo(self.stored).nmant - self.mantissa_bits

    @cached_property
    def _codes(self) -> np.dtype:
        return np.dtype(f"uint{self.bits}")

    def round(self, values) -> np.ndarray:
        """Values as this format keeps them: to the nearest number, in a tie to the even one.

        values   any shape; taken as float32 first, as a tensor is
        Returns  float32, same shape. Beyond the largest number it is infinite, or NaN in a
                 format without infinity
        """
        with np.errstate(over="ignore"):
            values = np.asarray(values, "float32").astype(self.stored)
        if self._unused_bits:
            values = _shorten(values, self._unused_bits)
        return values.astype("float32")

    def line(self, around: float = 1.0, steps: int = 8) -> tuple[float, ...]:
        """The number nearest to `around`, with up to `steps` neighbours on each side, in order.

        Raises  CourseError when `around` lies beyond the largest number
        """
        if not abs(around) <= self.largest:
            raise CourseError(
                f"{self.name} ends at {self.largest:.6g}, and you ask for numbers around {around:g}: "
                f"choose a smaller one."
            )
        # Read as integers, the bits of positive numbers count them in order; negative ones mirror them.
        place = self._place(abs(around)) * (-1 if around < 0 else 1)
        last = self._place(self.largest)
        places = range(max(place - steps, -last), min(place + steps, last) + 1)
        return tuple(float(np.copysign(self._number(abs(place)), place)) for place in places)

    def _place(self, value: float) -> int:
        return int(self.round(value).astype(self.stored).view(self._codes)) >> self._unused_bits

    def _number(self, place: int) -> float:
        return float(self._codes.type(place << self._unused_bits).view(self.stored))


def _read(name: str) -> Format:
    info = ml_dtypes.finfo(name)
    numbers = (info.max, info.smallest_normal, info.smallest_subnormal, info.eps)
    return Format(name, name, info.bits, info.nexp, info.nmant, *map(float, numbers))


def _with_mantissa(base: Format, name: str, bits: int) -> Format:
    epsilon = 2.0**-bits
    return dataclasses.replace(
        base,
        name=name,
        mantissa_bits=bits,
        epsilon=epsilon,
        largest=base.largest * (2 - epsilon) / (2 - base.epsilon),
        smallest_subnormal=base.smallest_normal * epsilon,
    )


def _shorten(values: np.ndarray, unused_bits: int) -> np.ndarray:
    """Round float32 to the nearest, ties to even, by its bits: adding just under half carries where it must."""
    codes = values.view("uint32")
    odd = (codes >> unused_bits) & 1
    rounded = (codes + ((1 << (unused_bits - 1)) - 1) + odd) >> unused_bits << unused_bits
    return np.where(np.isfinite(values), rounded.astype("uint32").view("float32"), values)


_WIDE, *_SHORT = map(_read, ("float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"))
FORMATS = {one.name: one for one in (_WIDE, _with_mantissa(_WIDE, "tf32", TF32_MANTISSA_BITS), *_SHORT)}


def find(name: str) -> Format:
    """A format by its name. Raises CourseError with the names for another one."""
    if name not in FORMATS:
        raise CourseError(f"no number format is called {name!r} here: choose one of {', '.join(FORMATS)}.")
    return FORMATS[name]


def policies() -> tuple[str, ...]:
    """The plain and mixed dtype policies that this Keras has and its backend computes in."""
    dtypes = ("float64", *FORMATS)
    return tuple(name for prefix in ("", "mixed_") for name in (prefix + dtype for dtype in dtypes) if _policy(name))


def check_policy(policy):
    """The Keras dtype policy of that name, if the backend keeps its promise.

    policy   a name such as "mixed_bfloat16", or a policy
    Raises   CourseError when Keras knows no such policy, or when the backend would
             compute in another dtype: by default JAX turns float64 into float32
    """
    import keras

    if found := _policy(policy):
        return found
    raise CourseError(
        f"this Keras on the {keras.backend.backend()} backend has no dtype policy {getattr(policy, 'name', policy)!r}: "
        f"choose one of {', '.join(policies())}."
    )


def _policy(policy):
    import keras

    try:
        found = keras.dtype_policies.get(policy)
    except (ValueError, TypeError):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns that it truncates; the comparison sees it
        kept = all(_dtype(keras.ops.ones((), dtype)) == dtype for dtype in (found.compute_dtype, found.variable_dtype))
    return found if kept and keras.backend.is_float_dtype(found.compute_dtype) else None


def layer_dtypes(model) -> list[tuple[str, str, str]]:
    """(layer, compute dtype, dtypes of its variables) of every layer, with those inside nested models.

    The variables' dtypes are read from the variables; "-" for a layer without any.
    """
    rows = []
    for layer in model.layers:
        if hasattr(layer, "layers"):
            rows += [(f"{layer.name}/{name}", *dtypes) for name, *dtypes in layer_dtypes(layer)]
        else:
            kept = sorted({_dtype(variable) for variable in layer.weights})
            rows.append((layer.name, layer.compute_dtype, ", ".join(kept) or "-"))
    return rows


class UnscaledFloat16(UserWarning):
    """Small gradients become zero in a custom loop."""


def warn_unscaled(model, optimizer) -> None:
    """Warn, before a custom loop, when a layer of the model computes in float16 and the optimizer scales no loss.

    `compile` wraps the optimizer itself where the model's own policy is named mixed_float16, and nowhere else.
    """
    import keras

    halves = any(compute_dtype == "float16" for _, compute_dtype, _ in layer_dtypes(model))
    wrapped = [optimizer]
    while hasattr(wrapped[-1], "inner_optimizer"):
        wrapped.append(wrapped[-1].inner_optimizer)
    scales = any(isinstance(one, keras.optimizers.LossScaleOptimizer) or one.loss_scale_factor for one in wrapped)
    if halves and not scales:
        smallest = FORMATS["float16"].smallest_subnormal
        warnings.warn(
            f"{model.name!r} computes in float16 and {type(wrapped[-1]).__name__} scales no loss, so gradients "
            f"below about {smallest:.0e} become zero: wrap {type(wrapped[-1]).__name__} in training.AgreeingLossScale "
            f"and differentiate optimizer.scale_loss(loss); {LESSON} shows why.",
            UnscaledFloat16,
            stacklevel=2,
        )


def _dtype(tensor) -> str:
    import keras

    return keras.backend.standardize_dtype(tensor.dtype)
