"""Read distributed state as plain values. TensorFlow is needed only to list devices."""


def device_of(value: object) -> str:
    """The device that a tensor or variable lives on, "CPU:3"; or what the value is instead."""
    device = getattr(value, "device", None)
    if not isinstance(device, str) or "device:" not in device:
        return f"no device ({type(value).__name__})"
    return device.rsplit("device:", 1)[1]


def device_names() -> tuple[str, ...]:
    """The logical devices that simulate() made: the GPUs if there are several, else the CPUs."""
    import tensorflow as tf

    gpus, cpus = (tf.config.list_logical_devices(kind) for kind in ("GPU", "CPU"))
    return tuple(device.name.rsplit("device:", 1)[1] for device in (gpus if len(gpus) > 1 else cpus))
