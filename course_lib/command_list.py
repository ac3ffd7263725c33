"""The subcommands of `course`, for whom each is, and the words of its help. Standard library only."""

import difflib

LEARNERS = {
    "doctor": "say what this machine has and what each lesson will do on it",
    "lab": "open JupyterLab on the first lesson",
    "check": "run an exercise in a fresh kernel and show its verdicts",
    "progress": "show the points earned so far, what is open, and the next step",
    "update": "bring this clone to the newest version, and keep what you wrote",
    "program": "print a plain program for your own machines",
    "plan": "predict memory and time of a training step on chips not here",
    "compile": "compile a model's train step for a TPU slice that is not there",
    "cluster": "run a distributed job here, or write it for Slurm or Kubernetes",
    "certificate": "write your completion certificate",
}
LECTURERS = {
    "grade": "grade a class: a folder, a zip or notebooks, each in a sandbox",
    "verify": "verify a completion certificate; sign one that is right",
    "colab": "write self-contained notebooks for Colab, this package inside",
    "badges": "name your fork on GitHub in badges and set-up cells",
    "book": "write lessons, exercises and reference as a web site",
}
MAINTAINERS = {
    "new-exercises": "write exercises/ from solutions/",
    "run-notebooks": "execute notebooks and store their outputs",
}

GROUPS = {
    "for learners": LEARNERS,
    "for lecturers, in a checkout": LECTURERS,
    "for maintainers, in a checkout": MAINTAINERS,
}
NAMES = tuple(name for group in GROUPS.values() for name in group)
EPILOG = """Examples:
  course check 02            your answers to exercise 02, checked
  course plan --help         what one command takes, with an example

README.md is the way in; TROUBLESHOOTING.md explains every message."""


def described() -> str:
    """All of them, a line each, by whom they are for."""
    lines = ["Work through the distributed training course."]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<14} {text}" for name, text in group.items())]
    return "\n".join(lines)


def near(name: str) -> str:
    """What a misspelt command may have meant, in words; nothing where none is like it."""
    found = difflib.get_close_matches(name, NAMES, n=1)
    return f"perhaps you mean `course {found[0]}`; " if found else ""
