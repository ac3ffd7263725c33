"""The zoo on Keras on JAX; prints {helper: {member: verdict}} as JSON. test_zoo.py runs it in a process of its own."""

import json
import sys
from contextlib import contextmanager

from course_lib import devices

devices.simulate(4, "jax")  # before Keras is imported: it picks the backend

import jax  # noqa: E402
import keras  # noqa: E402
from test_zoo import EPOCHS, GROUPS, NOT_ON_JAX, SHARDED, judged, new_class, tried, weights_of  # noqa: E402
from zoo import BATCH, ZOO, batches  # noqa: E402

from course_lib import accumulate, sharding  # noqa: E402


def fit(member, *mixins, wrap=lambda optimizer: optimizer, size=BATCH):
    keras.utils.set_random_seed(0)
    model, optimizer = member.make(new_class(*mixins)), member.new_optimizer(wrap)
    model.compile(optimizer, **member.settings())
    history = model.fit(batches(member, size), epochs=EPOCHS, shuffle=False, verbose=0, **member.fit).history
    return weights_of("fit", model, history["loss"]), model


def in_groups(member):
    return fit(member, accumulate.ExactGroups, wrap=lambda optimizer: accumulate.Accumulating(optimizer, 2), size=4)[0]


@contextmanager
def split_as_zero(variables):
    """Keras' ModelParallel, with every variable where `state_sharding` puts it."""
    mesh = jax.sharding.Mesh(jax.devices(), ("model",))
    layouts = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1, 4), ("batch", "model")))
    for variable, place in zip(variables, sharding.state_sharding([v.value for v in variables], mesh, "model")):
        layouts[variable.path] = (*place.spec, *[None] * (len(variable.shape) - len(place.spec)))
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch"))
    try:
        yield
    finally:
        keras.distribution.set_distribution(None)


def split(member):
    keras.utils.clear_session()  # so that two models of a member have the same paths
    variables = member.make(new_class()).variables
    keras.utils.clear_session()
    with split_as_zero(variables):
        run, model = fit(member)
        split = [v for v in variables if any(length % 4 == 0 for length in v.shape)]
        held = [v for v in model.variables if max(sharding.device_bytes(v).values()) < v.value.nbytes]
        assert len(held) == len(split)
    return run


if __name__ == "__main__":
    helpers = {GROUPS: in_groups, SHARDED: split}
    table: dict[str, dict[str, str]] = {helper: {} for helper in helpers}
    for name in (name for name in sys.argv[1:] if name not in NOT_ON_JAX):
        alone, _ = fit(ZOO[name])
        for helper, run in helpers.items():
            table[helper][name] = judged(name, alone, tried(lambda run=run, name=name: run(ZOO[name])))
    print(json.dumps(table))
