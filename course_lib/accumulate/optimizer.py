"""The optimizer that adds up micro-batches. Needs Keras, on TensorFlow or JAX; taught in notebooks/08."""

import keras
from keras import ops

from course_lib.errors import CourseError

HALF = ("float16", "bfloat16")


def micro_batch_size(global_batch: int, micro_batches: int, replicas: int = 1) -> int:
    """Examples that each replica computes at a time.

    global_batch   examples of one update
    micro_batches  parts that each replica computes one after another
    Raises         CourseError when the parts would not be equal
    """
    if min(global_batch, micro_batches, replicas) < 1:
        raise CourseError(
            f"a global batch, its micro-batches and the replicas are 1 or more, "
            f"not {global_batch}, {micro_batches} and {replicas}."
        )
    parts = micro_batches * replicas
    if global_batch % parts:
        raise CourseError(
            f"a global batch of {global_batch} does not divide into {micro_batches} micro-batches on {replicas} "
            f"replica(s): take a multiple of {parts}, such as {max(1, round(global_batch / parts)) * parts}."
        )
    return global_batch // parts


@keras.saving.register_keras_serializable(package="course_lib")
class Accumulating(keras.optimizers.Optimizer):
    """An optimizer that adds up the gradients of several micro-batches, and then makes one update.

    Each replica keeps its own sums. When a group is full they are added up over the
    replicas, once, and the inner optimizer gets the gradient of the whole group: it
    clips, tests for overflow and counts `iterations` as if it had seen one big batch
    on one device. The sums are variables of the optimizer, so a checkpoint taken in
    the middle of a group holds them.

    For float16 the loss scale goes inside, and Keras must not put another around it:
    `Accumulating(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), 4)` and
    `compile(..., auto_scale_loss=False)`.

    inner_optimizer  any Keras optimizer, or its name; it keeps its clipping, averages and schedules.
                     After `build` it sums nothing over replicas, so do not use it alone
    micro_batches    k, calls of `apply` per update
    Raises           CourseError for a k below 1, an inner optimizer that accumulates by itself, a loss
                     scale around it, a step before `build`, missing gradients
    """

    def __init__(self, inner_optimizer, micro_batches: int, name: str | None = None):
        if not isinstance(micro_batches, int) or micro_batches < 1:
            raise CourseError(f"a group has a whole number of micro-batches, 1 or more, not {micro_batches!r}.")
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = keras.optimizers.get(inner_optimizer)
        self.micro_batches = micro_batches
        if _innermost(self).gradient_accumulation_steps:
            raise CourseError(
                f"{_innermost(self).name} accumulates by itself: leave its gradient_accumulation_steps out."
            )

    def build(self, variables) -> None:
        """Make the sums, one as large as each variable, and the inner optimizer's variables."""
        if any(self._overwrite_variable_with_gradient(variable) for variable in variables):
            raise CourseError(
                "float8 layers replace their scales by gradients, which don't add up: accumulate in another precision."
            )
        self.sums = [self._local_sum(v.shape, f"{_path(v).replace('/', '_')}_sum", like=v) for v in variables]
        self.examples = self._local_sum((), "examples")
        self.added = self.add_variable((), dtype="int32", aggregation="only_first_replica", name="micro_batches_added")
        self.inner_optimizer.build(variables)
        _sum_no_more(_innermost(self))
        super().build(variables)

    def apply(self, grads, trainable_variables=None, rows=None) -> None:
        """Add one micro-batch; with the last one of its group, update the variables.

        grads  one per variable that the optimizer was built with, as any Keras optimizer takes them: of the
               mean loss over the replica's examples, divided by the number of replicas, which is what
               `fit` and Keras' losses give
        rows   the replica's examples in this micro-batch: every example of the group then counts alike. None:
               every micro-batch counts alike
        """
        trainable_variables = trainable_variables and list(trainable_variables)
        self._require(grads, trainable_variables)
        rows = 1 / _replicas() if rows is None else rows
        for variable, gradient in zip(trainable_variables or self._trainable_variables, grads):
            total = self.sums[self._get_variable_index(variable)]
            self.assign_add(total, ops.cast(_dense(gradient), total.dtype) * ops.cast(rows * _replicas(), total.dtype))
        self.assign_add(self.examples, ops.cast(rows, "float32"))
        self.assign_add(self.added, 1)
        self._update_when(lambda: ops.equal(self.added, self.micro_batches))

    def apply_rest(self) -> None:
        """Update from a group that is not full, if one has begun. Call it as `apply`, in a replica's step."""
        if self.built:
            self._update_when(lambda: ops.greater(self.added, 0))

    def stateless_apply(self, optimizer_variables, grads, trainable_variables, rows=None):
        """JAX's form of `apply`: lists of values in, new lists of values out."""
        if keras.backend.backend() == "tensorflow":
            return super().stateless_apply(optimizer_variables, grads, trainable_variables)  # refuses, as for all
        mapping = [*zip(self._trainable_variables, trainable_variables), *zip(self.variables, optimizer_variables)]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            self.apply(grads, rows=rows)
        return tuple([scope.get_current_value(v) for v in kind] for kind in (self._trainable_variables, self.variables))

    @property
    def variables(self):
        return self._variables + self.inner_optimizer.variables

    @property
    def iterations(self):
        """Updates so far; not micro-batches."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def loss_scale_factor(self):
        return False  # not None, which would make Keras leave out the assignment below

    @loss_scale_factor.setter
    def loss_scale_factor(self, factor):
        """Keras sets this when a LossScaleOptimizer takes an optimizer in, as `compile` does under mixed_float16."""
        if hasattr(self, "inner_optimizer"):
            raise CourseError(
                "a loss scale around the accumulation would skip single micro-batches: put it inside, "
                "Accumulating(keras.optimizers.LossScaleOptimizer(...), k), and compile(..., auto_scale_loss=False)."
            )

    def set_weights(self, weights):
        """Take the values of all variables, the inner optimizer's too, in the order of `variables`."""
        if not self.built:
            return super().set_weights(weights)  # refuses, as for all
        for variable, value in zip(self.variables, weights, strict=True):
            variable.assign(value)

    def scale_loss(self, loss):
        return self.inner_optimizer.scale_loss(loss)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        _innermost(self).exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list):
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self):
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {"name": self.name, "inner_optimizer": inner, "micro_batches": self.micro_batches}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        inner = keras.saving.deserialize_keras_object(config["inner_optimizer"], custom_objects=custom_objects)
        return cls(**{**config, "inner_optimizer": inner})

    def _local_sum(self, shape, name: str, like=None):
        """A variable that each replica adds to by itself; reading it outside the replicas gives their sum."""
        dtype = "float32" if like is None else keras.backend.standardize_dtype(like.dtype)
        dtype = "float32" if dtype in HALF else dtype
        kind = {"synchronization": "on_read", "aggregation": "sum", "layout": getattr(like, "_layout", None)}
        variable = keras.Variable("zeros", shape=shape, dtype=dtype, name=name, trainable=False, **kind)
        self._track_variable(variable)
        return variable

    def _require(self, grads, trainable_variables) -> None:
        if not self.built and trainable_variables is not None and _replicas() == 1:
            self.build(trainable_variables)  # as every Keras optimizer does at its first step
        if not self.built:
            raise CourseError(
                "the accumulating optimizer has no sums yet: call optimizer.build(model.trainable_variables) "
                "before the first step, under strategy.scope() where there is a strategy."
            )
        variables = trainable_variables or self._trainable_variables
        missing = [_path(v) for v, gradient in zip(variables, grads) if gradient is None]
        if missing or len(grads) != len(self.sums):
            without = f" (none for {', '.join(missing)})" if missing else ""
            raise CourseError(
                f"{len(grads) - len(missing)} gradients for {len(self.sums)} variables{without}: pass one for each "
                f"variable that the optimizer was built with; set trainable = False before that on those not trained."
            )

    def _update_when(self, due) -> None:
        if keras.backend.backend() != "tensorflow":
            return self._replace_when(due)
        import tensorflow as tf

        def in_all_replicas(strategy):
            # The condition is outside the replicas: inside it no replica could wait for the others (keras issue 20582).
            ops.cond(due(), lambda: strategy.extended.call_for_each_replica(self._update), lambda: None)

        tf.distribute.get_replica_context().merge_call(in_all_replicas)

    def _update(self) -> None:
        """The group's one communication, and the update from it, on one of TensorFlow's replicas."""
        from course_lib.training import sum_over_replicas  # not where JAX stands alone: it needs TensorFlow

        examples, *sums = sum_over_replicas([variable.value.read_value() for variable in (self.examples, *self.sums)])
        self.inner_optimizer.apply(
            [total / ops.cast(examples, total.dtype) for total in sums], self._trainable_variables
        )
        for variable in (*self.sums, self.examples, self.added):
            self.assign(variable, ops.zeros_like(variable))

    def _replace_when(self, due) -> None:
        """The same where a condition may not assign, but gives one set of values or another: on JAX."""
        own, inner = [*self.sums, self.examples, self.added], self.inner_optimizer.variables
        variables = [*self._trainable_variables, *inner, *own]

        def updated():
            means = [total / ops.cast(self.examples, total.dtype) for total in self.sums]
            values = [[v.value for v in kind] for kind in (inner, self._trainable_variables)]
            trained, kept = self.inner_optimizer.stateless_apply(values[0], means, values[1])
            return [*trained, *kept, *(ops.zeros_like(v.value) for v in own)]

        for variable, value in zip(variables, ops.cond(due(), updated, lambda: [v.value for v in variables])):
            variable.assign(value)


def _path(variable) -> str:
    """A variable's path; a tf.Variable beside Keras' own has a name."""
    return getattr(variable, "path", None) or variable.name.partition(":")[0]


def _innermost(optimizer):
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def _sum_no_more(optimizer) -> None:
    """Keep an optimizer from summing over the replicas: it gets the sum, and must clip that, not the parts."""
    if keras.backend.backend() == "tensorflow":
        optimizer._all_reduce_sum_gradients = list  # private: Keras 3's apply() has no argument for it


def _replicas() -> int:
    """Copies of the model that each add a part: TensorFlow's replicas. On JAX one program sees the whole batch."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def _dense(gradient):
    """An embedding's gradient holds only the rows that were looked up; a sum needs all rows."""
    if hasattr(gradient, "dense_shape"):  # tf.IndexedSlices
        import tensorflow as tf

        return tf.convert_to_tensor(gradient)
    return gradient
