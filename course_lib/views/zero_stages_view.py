"""A device's memory by ZeRO stage and by micro-batch. Needs JAX, and matplotlib when shown; used in notebooks/07."""

from course_lib.views.controls import Choice, LogRange
from course_lib.views.explorer import View, explorer

STACKS = {  # bytes of weight, of gradient, of optimizer with its master copy
    "mixed, with a master copy": (2, 2, 12),
    "float32": (4, 4, 8),
}
COUNTS = tuple(2**power for power in range(11))


def _fits(passes, values) -> bool:
    return passes <= values["examples"]


@explorer(
    parameters=LogRange("parameters", 1e6, 1e12, (1e8, 7.5e9, 7e10)),
    devices=Choice("devices", COUNTS, ahead=(1, 8, 64)),
    stack=Choice("numbers", tuple(STACKS)),
    activations=LogRange("activations, MB an example", 0.1, 1e5, (10.0, 100.0, 1000.0)),
    examples=Choice("examples of a device", COUNTS, ahead=(32,)),
    passes=Choice("micro-batches of them", COUNTS, _fits, ahead=(1, 8, 32)),
)
def zero_stages(
    parameters: float = 7.5e9,
    devices: int = 64,
    stack: str = "mixed, with a master copy",
    activations: float = 100.0,
    examples: int = 32,
    passes: int = 1,
) -> View:
    """What each device holds at ZeRO's stages 0 to 3, and what accumulation does to the activations beside it.

    parameters   1e6 to 1e12
    devices      replicas that share what a stage cuts
    stack        "mixed, with a master copy" or "float32": bytes per parameter
    activations  MB that an example's forward pass keeps
    examples     of one device in an update
    passes       micro-batches that they come in, one after another
    """
    from course_lib import sharding, show

    sizes = dict(zip(("parameter_bytes", "gradient_bytes", "optimizer_bytes"), STACKS[stack]))
    kept = activations * 1e6 * examples / passes
    drawn = {}
    for stage in range(4):
        held = sharding.zero_bytes(round(parameters), devices, stage, **sizes)
        parts = {"parameters": held.parameters, "gradients": held.gradients, "optimizer": held.optimizer}
        drawn[f"stage {stage}"] = {name: size / 1e9 for name, size in {**parts, "activations": kept}.items()}
    totals = [sum(parts.values()) for parts in drawn.values()]
    caption = (
        f"{parameters:,.4g} parameters on {devices} devices: {totals[0]:,.3g} GB on each at stage 0, and "
        f"{totals[3]:,.3g} GB at stage 3. Of that, {kept / 1e9:,.3g} GB are activations: {examples} examples in "
        f"{passes} micro-batch{'es' * (passes > 1)} keep those of {examples / passes:g} at once. "
        "ZeRO cuts them at no stage."
    )
    rows = [
        [stage, *(f"{part:,.2f}" for part in parts.values()), f"{total:,.2f}"]
        for (stage, parts), total in zip(drawn.items(), totals)
    ]
    headers = ("GB", "parameters", "gradients", "optimizer", "activations", "in all")
    return View(show.stacks(drawn, "held by each device, GB", caption), headers, rows)
