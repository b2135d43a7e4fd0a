"""Every Python block of the README, the guide and the other pages runs, and every command they name exists."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ("README.md", "docs/guide.md", "docs/migration.md", "docs/clusters/README.md", "docs/testing.md")
CONTINUED = "# continued\n"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def programs_of(page: str) -> list[str]:
    """The blocks that are programs, each with those that continue it."""
    programs: list[str] = []
    for block in blocks(page, "python"):
        if block.startswith(CONTINUED):
            programs[-1] += block
        elif block.startswith(("import", "from")):
            programs.append(block)
        # Any other block shows calls side by side and is no program.
    return programs


def whole_programs() -> list[tuple[str, str]]:
    return [(page, program) for page in PAGES for program in programs_of(page)]


@pytest.mark.parametrize(("page", "program"), whole_programs(), ids=lambda value: value.split("\n")[0][:40])
def test_a_program_of_the_documentation_runs(page: str, program: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, cwd=ROOT, check=False
    )
    assert result.returncode == 0, f"{page}:\n{result.stderr}"


def test_the_first_screen_shows_code_early() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert lines.index("```python") < 18
    assert next(number for number, line in enumerate(lines) if "pip install" in line) < 12


@pytest.mark.parametrize("command", re.findall(r"^make (\w+)", "\n".join(blocks("README.md", "sh")), re.MULTILINE))
def test_a_make_command_of_the_readme_exists(command: str) -> None:
    result = subprocess.run(["make", "--dry-run", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr


def test_links_of_the_documentation_lead_somewhere() -> None:
    for page in (
        *PAGES,
        "docs/design.md",
        "docs/scaling.md",
        "docs/clusters/kubernetes.md",
        "examples/README.md",
        "benchmarks/README.md",
    ):
        folder = (ROOT / page).parent
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
            assert (folder / target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("line", re.findall(r"^clusterenv train (.*)$", "\n".join(blocks("docs/guide.md", "sh")), re.M))
def test_the_options_of_a_training_command_exist(line: str) -> None:
    from clusterenv.cli.options import parse
    from clusterenv.learners import catalog

    algorithm, *arguments = shlex.split(line)
    if "--resume" in arguments:  # which needs a run
        at = arguments.index("--resume")
        del arguments[at : at + 2]
    assert parse(catalog.find(algorithm), arguments).settings
