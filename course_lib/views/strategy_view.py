"""Questions that lead to a strategy, its lesson and a planner command. Needs matplotlib when shown; notebooks/10."""

from dataclasses import dataclass

from course_lib.views.controls import Choice
from course_lib.views.explorer import View, explorer

YES, ACTIVATIONS, STATES = "yes", "all but its activations", "no"
DENSE, TABLES = "dense", "large embedding tables"
STAY, COME_AND_GO = "stay", "come and go"
TENSORFLOW, JAX = "TensorFlow", "Keras on JAX"
QUESTIONS = {
    "fits": Choice("Does the model fit one device?", (YES, ACTIVATIONS, STATES)),
    "machines": Choice("How many machines?", ("one", "several")),
    "tables": Choice("What are its weights?", (DENSE, TABLES)),
    "framework": Choice("Which framework?", (TENSORFLOW, JAX)),
    "device": Choice("Which devices?", ("GPUs or CPUs", "TPUs")),
    "workers": Choice("Do workers stay or come and go?", (STAY, COME_AND_GO)),
}

TREE = ("device", "framework", "tables", "workers", "fits", "machines")  # an order of them with few branches


@dataclass(frozen=True)
class Step:
    """One thing to do.

    line     of lesson 10's path that it answers
    lessons  that show it
    """

    do: str
    line: int
    lessons: tuple[str, ...]


CHECKPOINTS = Step("checkpoints, and a restart from the last", 4, ("03",))
KEEP_LESS = Step("micro-batches, recomputation, half precision", 3, ("08", "09"))
SERVERS = Step("parameter servers", 8, ("04",))
CUT_TABLES = Step("tables cut over the devices", 5, ("07",))
SHARD = Step("ZeRO or FSDP over replicas, by Keras on JAX", 5, ("07",))
TENSOR = Step("tensor parallelism in a machine, by Keras on JAX", 6, ("07",))
STAGES = Step("a pipeline across machines", 7, ("06",))
COMPILER = Step("what the TPU's compiler says about it", 9, ("05",))


def replicas(machines: str, framework: str, device: str) -> Step:
    """Data parallelism, by the name that the framework gives it."""
    several = machines == "several"
    if framework == JAX:
        name = "keras.distribution.DataParallel"
    else:
        name = "TPUStrategy" if device == "TPUs" else "MultiWorkerMirroredStrategy" if several else "MirroredStrategy"
    return Step(f"data parallelism: {name}", 4, ("02", "03") if several else ("02",))


def choose(fits: str, machines: str, tables: str, framework: str, device: str, workers: str) -> list[Step]:
    """What to do, in the order to try it; the arguments are QUESTIONS' answers."""
    steps = [KEEP_LESS] if fits == ACTIVATIONS else []
    served = framework == TENSORFLOW and device != "TPUs"  # by ParameterServerStrategy, which has no TPU workers
    if served and (tables == TABLES or (workers == COME_AND_GO and fits != STATES)):
        return [*steps, SERVERS]  # in place of replicas: the servers hold tables and survive their workers
    if tables == TABLES:
        steps.append(CUT_TABLES)
    if fits == STATES:
        steps += [SHARD, TENSOR]
        if machines == "several":
            steps.append(STAGES)
    else:
        steps.append(replicas(machines, framework, device))
    if workers == COME_AND_GO:
        steps.append(CHECKPOINTS)
    if device == "TPUs":
        steps.append(COMPILER)
    return steps


def tree(**given: str) -> dict:
    """Where answers lead: {question: {answer: lessons in their order, or another such mapping}}.

    given  answers that are not asked, by their names in QUESTIONS; a question whose answers
           all lead to the same is not asked either
    """
    open_questions = [name for name in TREE if name not in given]
    if not open_questions:
        return " → ".join(dict.fromkeys(" and ".join(step.lessons) for step in choose(**given)))
    below = {answer: tree(**given, **{open_questions[0]: answer}) for answer in QUESTIONS[open_questions[0]].options}
    first, *others = below.values()
    return first if all(one == first for one in others) else {QUESTIONS[open_questions[0]].label: below}


def planner_call(fits: str, machines: str, device: str) -> str:
    """A `course plan` that answers such a case with numbers: put your model, device and batch in."""
    chip, chips = "tpu-v5e" if device == "TPUs" else "h100-80gb", 64 if machines == "several" else 8
    if fits == ACTIVATIONS:
        return f"course plan gpt2-124m --chip {chip} --batch 64 --micro-batch 8 --recompute full"
    if fits == YES:
        return f"course plan gpt2-124m --chip {chip} --chips {chips} --batch 512"
    return f"course plan llama2-7b --chip {chip} --chips {chips} --batch 64 --precision bfloat16_master"


@explorer(**QUESTIONS)
def strategy(
    fits: str = YES,
    machines: str = "one",
    tables: str = DENSE,
    framework: str = TENSORFLOW,
    device: str = "GPUs or CPUs",
    workers: str = STAY,
) -> View:
    """A path from six answers to what to do first, where it is taught, and what to ask of the planner.

    fits       "yes", "all but its activations", or "no": weights, gradients and optimizer do not
    machines   "one" or "several"
    tables     "dense", or "large embedding tables"
    framework  "TensorFlow" or "Keras on JAX"
    device     "GPUs or CPUs", or "TPUs"
    workers    "stay", or "come and go": preemptible
    """
    from course_lib import show

    answers = dict(zip(QUESTIONS, (fits, machines, tables, framework, device, workers)))
    steps = choose(**answers)
    named = [f"{step.do} ({_lessons(step)})" for step in steps]
    numbers = (
        "No plan knows how stale the updates will be: measure it, as lesson 04 does."
        if SERVERS in steps
        else "The planner of lesson 10 has the numbers: put your model, devices and batch in."
    )
    caption = f"First make one device fast (lesson 01). Then {'; then '.join(named)}. {numbers}"
    rows = [[f"{place}", step.do, _lessons(step), f"line {step.line}"] for place, step in enumerate(steps, 1)]
    drawn = [f"{step.do} ({', '.join(step.lessons)})" for step in steps]
    asked = [(QUESTIONS[name].label, answer) for name, answer in answers.items()]
    ask = "" if SERVERS in steps else planner_call(fits, machines, device)
    return View(show.path(asked, drawn, caption), ("", "do", "shown in", "of lesson 10's path"), rows, ask)


def _lessons(step: Step) -> str:
    return f"{'lessons' if len(step.lessons) > 1 else 'lesson'} {' and '.join(step.lessons)}"
