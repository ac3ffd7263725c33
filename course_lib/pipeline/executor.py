"""One stage of a pipeline, run by a schedule in its own process. Needs TensorFlow; taught in notebooks/06.

The stage's forward runs under its own tape. Its backward takes the gradient
of its output from the next stage (`output_gradients`), and passes on the gradient
of its input. Between steps nothing is in flight.
"""

import time
from collections.abc import Callable

import keras
import tensorflow as tf

from course_lib.errors import CourseError
from course_lib.pipeline.links import Links
from course_lib.pipeline.schedules import Schedule
from course_lib.pipeline.timelines import FORWARD, Slot, Work
from course_lib.step_rules import has_mask, one_per_row


class Stage:
    """A part of a model that trains as its share of one device would.

    links             to the neighbours, with float32 between them
    model             this stage's layers, built; trained here, by `optimizer`
    per_example_loss  (labels, outputs) -> one loss per example or token, such as a Keras
                      loss with reduction="none"; used by the last stage
    slots             what the last step did when, in seconds of this machine's monotonic clock;
                      right on a CPU, where an operation has ended when it returns
    Raises            CourseError for a stage without weights, and an optimizer that scales the loss or clips by the
                      norm of all gradients; from the first step for layers that add to the loss, for masks, and for
                      several inputs or outputs

    BatchNormalization sees micro-batches, not the batch.
    """

    def __init__(self, links: Links, model: keras.Model, optimizer, per_example_loss: Callable):
        if not model.trainable_variables:
            raise CourseError(
                f"stage {links.stage} has no weights to train: give it built layers that have some, "
                f"or use fewer stages."
            )
        if getattr(optimizer, "global_clipnorm", None) or float(optimizer.scale_loss(1.0)) != 1:
            raise CourseError(
                f"{type(optimizer).__name__} clips by the norm of all gradients or scales the loss, and a stage sees "
                "its own part alone: use clipnorm or clipvalue, and float32 or bfloat16."
            )
        self.links, self.model, self.optimizer, self.slots = links, model, optimizer, ()
        self._loss = per_example_loss
        self._forward = tf.function(self._inner_forward if links.after else self._last_forward, autograph=False)
        self._update = tf.function(
            lambda gradients: optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        )
        self._held: dict[int, tuple] = {}  # micro-batch to tape, inputs and outputs, from its forward to its backward
        optimizer.build(model.trainable_variables)

    def step(self, schedule: Schedule, x, y) -> float | None:
        """Train on one batch; every stage is given the whole of it, reads what it needs, and takes part.

        schedule  the same on all stages, with one chunk
        x, y      (b, ...) the batch's inputs and labels; only the first stage reads x, only the last y
        Returns   the batch's mean loss on the last stage, None on the others
        Raises    CourseError when the micro-batches don't divide b, or the schedule is for other stages
        """
        gradients, loss = self.gradients(schedule, x, y)
        self._update(gradients)
        return loss

    def gradients(self, schedule: Schedule, x, y) -> tuple[list[tf.Tensor], float | None]:
        """Run a schedule once, and leave the weights as they are.

        Returns  the gradients of the batch's mean loss, one per trainable variable; the loss as in `step`
        """
        self._require(schedule)
        inputs, labels = (split_batch(part, schedule.micro_batches) for part in (x, y))
        sums, losses, slots = None, [], []
        for work in schedule.orders[self.links.stage]:
            arrived = self._arrival(work, inputs, schedule.micro_batches)
            start = time.monotonic()  # waiting is not work
            if work.kind == FORWARD:
                neighbour = self.links.after
                outgoing = self._go_forward(work.micro_batch, arrived, labels[work.micro_batch])
            else:
                neighbour = self.links.before
                *gradients, outgoing = self._go_backward(work.micro_batch, arrived)
                sums = _added(sums, gradients) if sums else gradients
            slots.append(Slot(self.links.stage, work, start, time.monotonic()))
            if neighbour:
                neighbour.send(work.micro_batch, outgoing.numpy())
            elif work.kind == FORWARD:
                losses.append(outgoing)
        self.slots = tuple(slots)
        return sums, float(sum(losses)) / schedule.micro_batches if losses else None

    def _require(self, schedule: Schedule) -> None:
        if schedule.chunks > 1:
            raise CourseError(
                f"{schedule.name!r} has {schedule.chunks} chunks per stage, and a stage here runs one: "
                f"use gpipe or 1F1B."
            )
        if schedule.stages != self.links.stages:
            raise CourseError(
                f"{schedule.name!r} is for {schedule.stages} stages and {self.links.stages} are connected: "
                f"make it for as many stages as the job has workers."
            )

    def _arrival(self, work: Work, inputs: list, micro_batches: int):
        """What work starts from: activations, or the gradient of the batch's mean loss by this stage's output."""
        if work.kind == FORWARD:
            return self.links.before.receive(work.micro_batch) if self.links.before else inputs[work.micro_batch]
        return self.links.after.receive(work.micro_batch) if self.links.after else 1 / micro_batches

    def _go_forward(self, micro_batch: int, arrived, labels) -> tf.Tensor:
        inputs = tf.convert_to_tensor(arrived)
        with tf.GradientTape() as tape:
            if self.links.before:
                tape.watch(inputs)
            outputs = self._forward(inputs, labels)
        self._held[micro_batch] = tape, inputs, outputs
        return outputs

    def _go_backward(self, micro_batch: int, arrived) -> list[tf.Tensor | None]:
        """Gradients by the weights, and last by the inputs: None on the first stage, where they may be integers."""
        tape, inputs, outputs = self._held.pop(micro_batch)
        sources = [self.model.trainable_variables, inputs if self.links.before else []]
        upstream = tf.cast(arrived, outputs.dtype)
        by_weights, by_inputs = tape.gradient(outputs, sources, output_gradients=upstream)
        return [*map(tf.convert_to_tensor, by_weights), by_inputs]  # an embedding's gradient comes as slices

    def _inner_forward(self, inputs, labels):
        outputs = self.model(inputs, training=True)
        if self.model.losses or not tf.is_tensor(outputs) or has_mask(outputs):
            raise CourseError(
                f"stage {self.links.stage} has layers that add to the loss, several outputs or a mask, and passes one "
                "tensor on: leave them out, or train by replicas."
            )
        return outputs

    def _last_forward(self, inputs, labels):
        """The micro-batch's mean loss."""
        outputs = self._inner_forward(inputs, labels)
        return tf.reduce_mean(one_per_row(self._loss(labels, outputs), outputs))


def use_one_thread() -> None:
    """Let TensorFlow compute on one thread, for a process that has one core; call it before anything is computed."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def split_batch(batch, micro_batches: int) -> list[tf.Tensor]:
    """Cut (b, ...) into micro-batches (b / m, ...).

    Raises  CourseError when m does not divide b: unequal parts would need unequal weights; for several arrays
    """
    if isinstance(batch, (list, tuple, dict, tf.RaggedTensor)):
        raise CourseError(f"a batch here is one array, not a {type(batch).__name__}: a stage reads one dense tensor.")
    rows = len(batch)
    if micro_batches < 1 or rows % micro_batches:
        raise CourseError(
            f"{micro_batches} micro-batches don't divide a batch of {rows}: use a number of micro-batches "
            f"that does, or cut the batch to a multiple of it."
        )
    return tf.split(batch, micro_batches)


@tf.function
def _added(sums, gradients):
    return [one + other for one, other in zip(sums, gradients)]
