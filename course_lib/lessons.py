"""The catalogue of lessons. Standard library only; doctor, checks, progress and grading read it."""

from dataclasses import dataclass

DATA = ("tensorflow-datasets", "scikit-learn", "matplotlib")


@dataclass(frozen=True)
class Part:
    """One notebook of the course.

    name       of its files in notebooks/, and of a lesson's in solutions/ and exercises/, without the ending
    title      without its number
    question   the one that it answers
    devices    that it divides its work over, simulated on the CPU where the machine has fewer
    minutes    that it runs on two CPU cores, about
    framework  Keras' backend in it: "tensorflow" or "jax"
    hardware   what it can use beside the CPU, or ""
    """

    name: str
    title: str
    question: str
    devices: int
    minutes: float
    framework: str = "tensorflow"
    hardware: str = ""

    @property
    def number(self) -> str:
        """As in the file's name: two digits, and a "b" for a second part."""
        return self.name.partition("_")[0]

    @property
    def runtime(self) -> str:
        """Colab's runtime for it, "CPU" or "TPU"."""
        return "TPU" if self.framework == "jax" else "CPU"


@dataclass(frozen=True)
class Lesson(Part):
    """A lesson, and the exercise that goes with it.

    packages   distributions that it needs beside the framework, as the package index names them
    second     an optional second notebook, which no other lesson and no exercise needs
    """

    packages: tuple[str, ...] = DATA
    second: Part | None = None

    @property
    def exercise(self) -> str:
        """The module of its questions in exercises/judges and exercises/probes."""
        return f"ex{self.number}"


_ALL = (
    Lesson(
        name="00_start_here",
        title="Start here",
        question="What do I have, and how does this course work?",
        devices=4,
        hardware="four GPUs",
        minutes=0.25,
    ),
    Lesson(
        name="01_one_device",
        title="One device",
        question="Where does a training step's time go?",
        devices=1,
        hardware="a GPU",
        minutes=0.7,
        second=Part(
            name="01b_one_device_files_kernels_memory",
            title="Files, kernels, memory",
            question="What else makes one device faster?",
            devices=1,
            hardware="a GPU",
            minutes=0.25,
        ),
    ),
    Lesson(
        name="02_data_parallelism",
        title="Data parallelism",
        question="Do four replicas compute the same as one device?",
        devices=4,
        hardware="four GPUs",
        minutes=0.75,
        second=Part(
            name="02b_data_parallelism_broken",
            title="Broken on purpose",
            question="What makes data parallelism wrong without an error?",
            devices=4,
            hardware="four GPUs",
            minutes=0.83,
        ),
    ),
    Lesson(
        name="03_multi_worker",
        title="Multi-worker",
        question="What changes when replicas are other machines?",
        devices=1,
        hardware="machines with GPUs",
        minutes=2,
        packages=(*DATA, "psutil", "tf_keras", "jax"),
    ),
    Lesson(
        name="04_parameter_server",
        title="Parameter servers",
        question="What do we gain and lose without synchrony?",
        devices=1,
        minutes=2,
        packages=(*DATA, "psutil"),
    ),
    Lesson(
        name="05_tpu",
        title="TPUs",
        question="How do I use a TPU, and what does it want from my code?",
        framework="jax",
        devices=8,
        hardware="eight TPU devices",
        minutes=1.5,
        packages=("keras", "psutil", "scikit-learn", "matplotlib"),
    ),
    Lesson(
        name="06_model_parallelism",
        title="Model parallelism",
        question="What if the model does not fit?",
        devices=2,
        minutes=1,
        packages=(*DATA, "psutil"),
    ),
    Lesson(
        name="07_tensor_parallelism_and_sharding",
        title="Tensor parallelism and sharding",
        question="How is one layer, or its optimizer state, split?",
        framework="jax",
        devices=8,
        hardware="eight GPUs or TPU cores",
        minutes=1.5,
        packages=("keras", "psutil", "scikit-learn", "matplotlib"),
    ),
    Lesson(
        name="08_gradient_accumulation",
        title="Gradient accumulation",
        question="How do I get a big batch in a small memory?",
        devices=2,
        hardware="two GPUs",
        minutes=1,
        packages=(*DATA, "psutil", "jax"),
    ),
    Lesson(
        name="09_mixed_precision",
        title="Mixed precision",
        question="Why is half precision faster, and when does it break?",
        devices=2,
        hardware="two GPUs",
        minutes=1,
        packages=(*DATA, "psutil", "jax"),
        second=Part(
            name="09b_mixed_precision_sums_memory_float8",
            title="Sums, memory, float8",
            question="How few bits, and how little memory, can training do with?",
            devices=2,
            hardware="two GPUs",
            minutes=1,
        ),
    ),
    Lesson(
        name="10_choosing_a_strategy",
        title="Choosing a strategy",
        question="Which of all these do I need?",
        devices=4,
        hardware="four GPUs",
        minutes=1,
        packages=(*DATA, "psutil"),
        second=Part(
            name="10b_choosing_a_strategy_scaling",
            title="Scaling",
            question="What do more devices bring, and when do they stop helping?",
            devices=4,
            hardware="four GPUs",
            minutes=0.33,
        ),
    ),
    Lesson(
        name="11_capstone",
        title="Capstone",
        question="Can I put it together?",
        devices=4,
        hardware="four GPUs",
        minutes=1.5,
        packages=(*DATA, "psutil"),
    ),
    Lesson(
        name="12_when_it_hangs",
        title="When it hangs, diverges or crawls",
        question="Why does nothing happen, and which task is it?",
        devices=1,
        minutes=2,
        packages=(*DATA, "psutil", "jax"),
    ),
)
LESSONS = {lesson.name: lesson for lesson in _ALL}  # in the order in which they are taught
NOTEBOOKS = {part.name: part for lesson in _ALL for part in (lesson, lesson.second) if part}


def in_colab(devices: int, framework: str = "tensorflow", accelerators: bool = True) -> str:
    """Which of Colab's runtimes to choose for a notebook, and what one GPU, or the TPU's one chip, changes.

    Takes what the notebook's set-up cell passes to devices.simulate; the line stands at its top.
    """
    number = {2: "two", 4: "four", 8: "eight"}.get(devices)
    if framework == "jax":
        return (
            f"take the TPU runtime. Its one chip is fewer than {number}, "
            f"so the {number} devices are simulated on its host's CPU."
        )
    if not accelerators:
        return "take the CPU runtime. A GPU would stay idle and change nothing."
    if number:
        return f"take the CPU runtime. One GPU is fewer than {number}, so it would stay idle and change nothing."
    return "take the CPU runtime. With a GPU, the cells run on it instead; that was not run here."
