"""Registers `clusterenv/Remote-v0` with Gymnasium, without importing Gymnasium.

`gymnasium.make_vec("clusterenv:clusterenv/Remote-v0", ...)` imports this package and then looks the id up. Importing
Gymnasium here would double the time of `import clusterenv`, so if it is not loaded yet, the registration waits for it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_ID = "clusterenv/Remote-v0"


def when_gymnasium_loads() -> None:
    """Register now if Gymnasium is loaded, otherwise as soon as it is."""
    if "gymnasium" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Watcher())


def _register() -> None:
    from gymnasium.envs.registration import register, registry

    if _ID not in registry:
        register(_ID, vector_entry_point="clusterenv.env.make:make_remote")


class _Watcher(importlib.abc.MetaPathFinder):
    """Sees the import of Gymnasium, lets the ordinary finder do it, registers afterwards and goes away."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for `gymnasium` alone."""
        if fullname != "gymnasium":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """The ordinary loader, with one line more at the end."""

    def __init__(self, inner: importlib.abc.Loader, watcher: _Watcher) -> None:
        self._inner, self._watcher = inner, watcher

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the ordinary loader."""
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the ordinary loader, then register."""
        self._inner.exec_module(module)
        if self._watcher in sys.meta_path:
            sys.meta_path.remove(self._watcher)
        _register()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)
