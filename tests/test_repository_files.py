"""What surrounds the course for others: its version, its citation, GitHub's workflows and forms."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from course_lib import bootstrap, cli
from course_lib.exercises.check import VERDICT_MIME

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").iterdir())}
FORMS = {path.stem: path for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[0-9]*"))}

# Published schemas that check-jsonschema carries, so nothing is fetched; per schema the files, and an edit of the first
# that it must catch. It has no schema of development containers: tests/test_environment.py reads ours.
SCHEMAS = {
    "vendor.github-workflows": ([*WORKFLOWS.values()], ("runs-on:", "runs_on:")),
    "custom.github-workflows-require-timeout": ([*WORKFLOWS.values()], ("timeout-minutes: 30", "")),
    "vendor.dependabot": ([ROOT / ".github" / "dependabot.yml"], ("interval: weekly", "interval: often")),
    "vendor.github-issue-forms": ([*FORMS.values()], ("type: input", "type: entry")),
    "vendor.github-issue-config": ([ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"], ("true", "perhaps")),
    "vendor.citation-file-format": ([ROOT / "CITATION.cff"], ("authors:", "writers:")),
}


def complaints(schema: str, *files: Path) -> str:
    """What the validator prints of files that do not fit, "" where all fit."""
    from check_jsonschema import main
    from click.testing import CliRunner

    done = CliRunner().invoke(main, ["--builtin-schema", schema, *map(str, files)])
    assert done.exit_code in (0, 1), done.output
    return done.output if done.exit_code else ""


@pytest.mark.skipif(find_spec("check_jsonschema") is None, reason="needs the extra lint, which Colab's stacks have not")
@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_for_others_fit_their_published_schemas(schema, tmp_path):
    files, (right, wrong) = SCHEMAS[schema]
    assert complaints(schema, *files) == ""
    text, broken = files[0].read_text(), tmp_path / files[0].name
    broken.write_text(text.replace(right, wrong, 1))
    assert right in text and "Schema validation errors" in complaints(schema, broken)


def test_every_file_for_others_has_a_schema():
    checked = {file for files, _ in SCHEMAS.values() for file in files}
    assert checked == {ROOT / "CITATION.cff", *(path for path in (ROOT / ".github").rglob("*") if path.is_file())}


def steps(workflow: str) -> list[dict]:
    jobs = yaml.safe_load(WORKFLOWS[workflow].read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def test_the_workflows_test_every_python_that_the_course_supports():
    matrix = yaml.safe_load(WORKFLOWS["test"].read_text())["jobs"]["test"]["strategy"]["matrix"]
    assert set(matrix["python"]) == set(bootstrap.SUPPORTED)
    assert f"Python {min(bootstrap.SUPPORTED)} to {max(bootstrap.SUPPORTED)}" in (ROOT / "README.md").read_text()
    for workflow in WORKFLOWS:
        named = [step["with"]["python-version"] for step in steps(workflow) if "setup-python" in step.get("uses", "")]
        assert set(named) <= {*bootstrap.SUPPORTED, "${{ matrix.python }}"}, workflow


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_calls_what_a_person_calls_and_may_do_little(workflow):
    """Targets of the Makefile and .ci/run, GitHub's own actions at a commit, and a token that reads."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    others = {"apt-get update -qq && apt-get install --yes -qq python3.11-venv", "PATH=/usr/bin:$PATH .ci/run"}
    others |= {"git diff requirements.lock"}
    for step in steps(workflow):
        if "run" in step:
            target = re.fullmatch(r"make ([a-z-]+)( UPGRADE=--upgrade)?", step["run"])
            assert step["run"] in others or target and target[1] in targets, step["run"]
        else:
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
    whole = yaml.safe_load(WORKFLOWS[workflow].read_text())
    assert whole["permissions"] == {"contents": "read"} and whole["concurrency"]
    for name, job in whole["jobs"].items():
        assert job.get("permissions", {}) == ({"pages": "write", "id-token": "write"} if name == "deploy" else {})


def test_the_form_for_a_misjudged_answer_says_how_to_copy_the_verdict():
    form = FORMS["2-misjudged-answer"].read_text()
    fields = {field.get("id"): field for field in yaml.safe_load(form)["body"]}
    assert fields["verdict"]["attributes"]["render"] == "json" and fields["verdict"]["validations"]["required"]
    command = re.search(r"`course (check 02 --json)`", form)[1].split()
    assert cli._parser().parse_args(command).json and VERDICT_MIME in form
    assert "do not post your answer's code" in " ".join(form.split())


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
