"""What surrounds the course for others: its version, its citation, GitHub's workflows and forms."""

import re
import tomllib
from pathlib import Path

import yaml

from course_lib import cli

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_version_is_named_everywhere(capsys):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    heading = r"^## \[(.+)\] - (unreleased|\d{4}-\d\d-\d\d)$"
    newest = re.search(heading, (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert citation["version"] == newest[1] == cli.VERSION == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert ("date-released" in citation) == (newest[2] != "unreleased")
    try:
        cli.main(["--version"])
    except SystemExit as exit:
        assert exit.code == 0
    assert capsys.readouterr().out == f"{PROJECT['version']}\n"
