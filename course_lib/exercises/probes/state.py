"""Read distributed state as plain values. TensorFlow is needed only to list devices."""

import sys
from types import ModuleType

import numpy as np

FRAMEWORKS = ("tensorflow", "keras", "jax", "jaxlib")


_loaded: frozenset[type] | None = None


def trust_loaded_classes() -> None:
    """Take for genuine what is loaded now and nothing else; a sandbox calls it before any learner code runs.

    Without it, a class that the learner puts into a framework's module counts as the framework's.
    """
    global _loaded
    modules = [
        one for name, one in sys.modules.items() if name.partition(".")[0] in FRAMEWORKS and isinstance(one, ModuleType)
    ]
    _loaded = frozenset(one for module in modules for one in vars(module).values() if isinstance(one, type))


def genuine(value: object) -> bool:
    """Whether a value's class is a framework's own, and not a learner's that looks like one or is derived from it."""
    kind = type(value)
    if _loaded is not None and kind not in _loaded:
        return False
    module, name = kind.__module__, kind.__qualname__
    ours = isinstance(module, str) and module.partition(".")[0] in FRAMEWORKS
    return ours and getattr(sys.modules.get(module), name, None) is kind


def device_of(value: object) -> str:
    """The device that a tensor or a variable, also Keras' own, lives on, "CPU:3"; or what the value is instead."""
    held = value.value if genuine(value) and type(value).__module__.startswith("keras.") else value
    device = held.device if genuine(held) and hasattr(held, "device") else None
    if not isinstance(device, str) or "device:" not in device:
        return f"no device ({type(value).__name__})"
    return device.rsplit("device:", 1)[1]


def copies_of(strategy, variable) -> list[np.ndarray]:
    """The numbers of a Keras variable on each replica.

    Raises  TypeError for what is no variable of Keras: it could claim any number of copies
    """
    if not genuine(variable) or not genuine(variable.value):
        raise TypeError(f"a weight is a {type(variable).__name__}, and a variable of Keras is expected")
    return [copy.numpy() for copy in type(strategy).experimental_local_results(strategy, variable.value)]


def device_names() -> tuple[str, ...]:
    """The logical devices that simulate() made: several GPUs where it took them, else the CPU's."""
    import tensorflow as tf

    gpus, cpus = (tf.config.list_logical_devices(kind) for kind in ("GPU", "CPU"))
    return tuple(device.name.rsplit("device:", 1)[1] for device in (gpus if len(gpus) > 1 else cpus))
