"""Fails when a file or a function has grown past what a reader can hold in mind."""

from __future__ import annotations

import ast
import pathlib
import sys

MAX_FILE, MAX_TEST_FILE, MAX_FUNCTION = 500, 700, 60


def problems(path: pathlib.Path) -> list[str]:
    """What is too long in one file."""
    text = path.read_text()
    limit = MAX_TEST_FILE if "tests" in path.parts else MAX_FILE
    lines = text.count("\n")
    found = [f"{path}: {lines} lines, more than {limit}"] if lines > limit else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node)
            if length > MAX_FUNCTION:
                found.append(f"{path}:{node.lineno} {node.name}: {length} lines, more than {MAX_FUNCTION}")
    return found


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (first.end_lineno or first.lineno) - first.lineno + 1 if is_docstring else 0


def main() -> int:
    """Check every Python file of the project."""
    folders = ("src", "tests", "examples", "benchmarks", "experiments", "fuzz", "scripts")
    files = [path for folder in folders for path in sorted(pathlib.Path(folder).rglob("*.py"))]
    found = [problem for path in files for problem in problems(path)]
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
