"""Nothing that comes in becomes code: the modules on the network path have no means to do that."""

from __future__ import annotations

import ast
import pathlib
from typing import Any

import pytest

import clusterenv

SOURCE = pathlib.Path(clusterenv.__file__).parent
NODE = "remote joining host member service steps rows columns records recipes building lending"
FILES = [
    *sorted((SOURCE / "wire").glob("*.py")),
    SOURCE / "transport" / "sockets.py",
    SOURCE / "transport" / "security.py",
    *(SOURCE / "node" / f"{name}.py" for name in NODE.split()),
]
MODULES = {"pickle", "cloudpickle", "marshal", "dill", "shelve", "joblib", "runpy", "ctypes", "subprocess"}
CALLS = {
    *("eval", "exec", "compile", "__import__", "import_module", "recv_pyobj", "send_pyobj", "recv_serialized"),
    *("loads_pickle", "torch_load", "system", "popen", "execv", "execve", "spawnv"),
}
# The node imports what its own command line names, and nothing else.
ALLOWED = {("member.py", "import_module")}


def found_in(path: pathlib.Path, text: str) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for each in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(each, ast.Import):
            names = [alias.name.partition(".")[0] for alias in each.names if alias.name.partition(".")[0] in MODULES]
        elif isinstance(each, ast.ImportFrom):
            module = (each.module or "").partition(".")[0]
            names = [module] if module in MODULES else [alias.name for alias in each.names if alias.name in CALLS]
        elif isinstance(each, ast.Call):
            names = [name for name in [_called(each.func)] if name in CALLS or name == "torch.load"]
        elif isinstance(each, ast.keyword):
            names = ["allow_pickle"] if each.arg == "allow_pickle" and not _is_false(each.value) else []
        found.update((path.name, name) for name in names)
    return found


def _called(func: Any) -> str:
    if isinstance(func, ast.Attribute):
        owner = func.value.id if isinstance(func.value, ast.Name) else ""
        if owner in ("re", "struct") and func.attr == "compile":
            return ""
        return "torch.load" if (owner, func.attr) == ("torch", "load") else func.attr
    return str(getattr(func, "id", ""))


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def test_all_files_are_there() -> None:
    assert len(FILES) > 18
    assert [path for path in FILES if not path.exists()] == []


@pytest.mark.threat("T01")
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_network_path_has_no_means_to_run_code(path: pathlib.Path) -> None:
    assert found_in(path, path.read_text()) - ALLOWED == set()


def test_the_one_exception_is_called_from_one_place() -> None:
    text = (SOURCE / "node" / "member.py").read_text()
    assert text.count("import_module(") == 1
    assert "for module in membership.imports:\n        _import(module)" in text


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from cloudpickle import loads",
        "import marshal as m",
        "eval(x)",
        "exec(x)",
        "importlib.import_module(x)",
        "from importlib import import_module",
        "socket.recv_pyobj()",
        "torch.load(x)",
        "np.load(x, allow_pickle=True)",
        "__import__(x)",
        "compile(x, '', 'exec')",
        "os.system(x)",
    ],
)
def test_the_gate_finds_each(line: str) -> None:
    assert found_in(pathlib.Path("x.py"), line)
