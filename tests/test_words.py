"""The course's English: words that stand for another one are written nowhere. See CONTRIBUTING.md."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What is not written, and what is written instead.
WORDS = {
    r"mend(?:s|ed|ing)?": "fix",
    r"breakages?": "bug, or failure",
    r"weigh(?:s|ed|ing)?": "weight each row, weighted mean",
    r"anew": "again, or afresh",
    r"twins?": "text alternative",
    r"laborator(?:y|ies)": "network lab",
    r"told(?! apart)": "see, is shown, is reported",
    r"number from [01]": "of at least 1",
    r"whose is whose": "who owns a notebook",
    r"classrooms?": "pool",
    r"gatherings?": "rendezvous, or all-gather",
    r"and else": "the others",
    r"belongs? into": "belongs in",
    r"(?:is|are) no (?:whole )?(?:number|list|dict|tuple|notebook|exercise|question|task|text)s?": "is not a ...",
}
FILES = [
    path
    for pattern in (
        "*.md",
        ".github/**/*.yml",
        "course_lib/**/*.py",
        "course_lib/**/*.toml",
        "course_lib/**/*.html",
        "tests/**/*.py",
        "notebooks/*.ipynb",
        "solutions/*.ipynb",
    )
    for path in sorted(ROOT.glob(pattern))
    if path != Path(__file__)
]


def written(path: Path) -> str:
    """What somebody wrote into a file: of a notebook its cells, and not what they printed."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_plain_words(path):
    found = [
        f"line {number}: {match[0]!r}, write {instead!r}: {line.strip()[:100]}"
        for number, line in enumerate(written(path).splitlines(), 1)
        for word, instead in WORDS.items()
        for match in re.finditer(rf"\b{word}\b", line, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)
