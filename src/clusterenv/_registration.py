"""Registers `clusterenv/Remote-v0` and our small environments with Gymnasium, without importing Gymnasium.

`gymnasium.make_vec("clusterenv:clusterenv/Remote-v0", ...)` imports this package and then looks the id up. Importing
Gymnasium here would double the time of `import clusterenv`, so if it is not loaded yet, the registration waits for it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_IDS: dict[str, dict[str, Any]] = {
    "clusterenv/Remote-v0": {"vector_entry_point": "clusterenv.env.make:make_remote"},
    "clusterenv/Catch-v0": {"entry_point": "clusterenv.envs.catch:Catch"},
    "clusterenv/Recall-v0": {"entry_point": "clusterenv.envs.recall:Recall"},
    "clusterenv/CartPoleNoVelocity-v0": {
        "entry_point": "clusterenv.envs.cartpole:CartPoleNoVelocity",
        "max_episode_steps": 500,
    },
}


def when_gymnasium_loads() -> None:
    """Register now if Gymnasium is loaded, otherwise as soon as it is."""
    if "gymnasium" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Watcher())


def _register() -> None:
    from gymnasium.envs.registration import register, registry

    for id, how in _IDS.items():
        if id not in registry:
            register(id, **how)


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
