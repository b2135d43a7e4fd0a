"""docs/reliability.md, SECURITY.md and the tests that they name: neither can be changed alone."""

from __future__ import annotations

import ast
import importlib
import pathlib
import re
import shlex

import pytest
import tyro

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reliability.md").read_text()
THREATS = (ROOT / "SECURITY.md").read_text()
IDS = [f"F{number:02}" for number in range(1, 61)]
THREAT_IDS = [f"T{number:02}" for number in range(1, 25)]
TEST = re.compile(r"`([\w/]+\.py::test_\w+)`")


def marked(kind: str) -> dict[str, set[str]]:
    """The tests of each fault or threat, by their marks."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for function in functions_of(path):
            for mark in function.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == f"pytest.mark.{kind}":
                    for name in map(ast.literal_eval, mark.args):
                        found.setdefault(name, set()).add(f"{path.relative_to(ROOT / 'tests')}::{function.name}")
    return found


def functions_of(path: pathlib.Path) -> list[ast.FunctionDef]:
    return [each for each in ast.parse(path.read_text()).body if isinstance(each, ast.FunctionDef)]


def rows(kind: str) -> dict[str, list[str]]:
    """The cells of each row of a table of the pages, by its id."""
    found = re.findall(rf"^\| ({kind}\d+) \| (.*) \|$", PAGE + THREATS, re.MULTILINE)
    assert len({name for name, _ in found}) == len(found), "an id comes twice"
    return {name: cells.split(" | ") for name, cells in found}


def test_every_fault_has_a_row_with_all_its_tests_and_no_others() -> None:
    check_marks("F", IDS, marked("fault"))


def test_every_threat_has_a_row_with_all_its_tests_and_no_others() -> None:
    check_marks("T", THREAT_IDS, marked("threat"))


def check_marks(kind: str, ids: list[str], marks: dict[str, set[str]]) -> None:
    told = rows(kind)
    assert list(told) == ids
    assert set(marks) <= set(ids)
    for name, cells in told.items():
        assert set(TEST.findall(cells[-1])) == marks.get(name, set()), name


def test_a_threat_without_a_test_is_told_as_not_defended() -> None:
    for name, cells in rows("T").items():
        assert TEST.findall(cells[-1]) or (cells[-1] == "**nothing**" and "**Not defended**" in cells[-2]), name


def test_a_row_without_a_test_says_so() -> None:
    for name, cells in rows("F").items():
        assert (cells[-1] == "**not yet**") == (not TEST.findall(cells[-1])), name


def test_every_promise_is_kept_by_a_test_and_every_fault_names_one() -> None:
    promises = rows("P")
    assert list(promises) == [f"P{number}" for number in range(1, len(promises) + 1)]
    for name, cells in promises.items():
        assert TEST.findall(cells[-1]), name
    for name, cells in rows("F").items():
        named = cells[-2].split()
        assert set(named) <= set(promises), name
        assert named or cells[-1] == "**not yet**", name


@pytest.mark.parametrize("test", sorted(set(TEST.findall(PAGE + THREATS))))
def test_a_test_that_the_page_names_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert name in [function.name for function in functions_of(ROOT / "tests" / path)]


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`python -m ((?:benchmarks|experiments)\.[^`]*)`", PAGE))))
def test_a_command_of_the_page_can_be_typed(command: str) -> None:
    module, *words = shlex.split(command)
    assert tyro.cli(importlib.import_module(module).Args, args=words)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", PAGE))))
def test_a_link_of_the_page_leads_somewhere(target: str) -> None:
    assert (ROOT / "docs" / target).exists()
