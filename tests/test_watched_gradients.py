"""What each replica's gradients say of a training, whoever applies them."""

import pytest
from installed import need

from course_lib import devices

tf = need("tensorflow")
from course_lib.exercises.judges import ex11  # noqa: E402
from course_lib.exercises.probes.watched_gradients import watched_gradients  # noqa: E402


@pytest.fixture(scope="module")
def strategy():
    return tf.distribute.MirroredStrategy(devices.simulate(4).names[:2])


@pytest.mark.parametrize("in_graph", [False, True])
def test_gradients_other_than_zero_and_changed_weights_are_counted_on_each_replica(strategy, in_graph):
    with strategy.scope():
        weight = tf.Variable(2.0, aggregation=tf.VariableAggregation.SUM)

    def step(rate):
        counts = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group == 0, tf.float32)
        with tf.GradientTape() as tape:
            loss = counts * weight**2
        weight.assign_sub(rate * tape.gradient(loss, [weight])[0])

    run = (
        tf.function(lambda rate: strategy.run(step, (rate,))) if in_graph else lambda rate: strategy.run(step, (rate,))
    )
    with watched_gradients(strategy) as found:
        for rate in (0.1, 0.1, 0.0, 0.0):
            run(tf.constant(rate))
        with tf.GradientTape() as tape:  # on no replica
            loss = weight**2
        tape.gradient(loss, weight)
    assert found() == {"other_than_zero": [4, 0], "changes": 3}  # the first weight, and one after each of two updates


@pytest.mark.parametrize(
    "updates, changes, right",
    [(700, 700, True), (660, 1_320, True), (0, 700, True), (0, 701, False), (500, 2_500, False)],
)
def test_updates_by_hand_count(updates, changes, right):
    answers = {"updates": updates, "gradients": {"other_than_zero": [updates], "changes": changes}}
    assert (ex11._within_budget(answers, 0) is True) == right
