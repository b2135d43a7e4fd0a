"""How one environment is made, as plain data: its id, its arguments, and its wrappers by name.

Nothing is imported because of what came in. A host runs only what it has loaded by itself: Gymnasium, and the modules
that its own command line names (`--import`). A name finds a class or a function where it was defined, never what a
module happens to have imported, so that `my_envs:os.system` finds nothing.
"""

from __future__ import annotations

import functools
import re
import sys
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
from gymnasium.vector import AutoresetMode

from clusterenv import wrappers as own_wrappers
from clusterenv.errors import ConfigError, ConfigTypeError, ProtocolError
from clusterenv.wire.arrays import parts_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    Wrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]

# Every host has these; of them it offers the wrappers, without being told to.
_EVERYWHERE = ("gymnasium", own_wrappers.__name__)
# But for those that take a path, and write there.
_WRITERS = ("gymnasium.wrappers.rendering:RecordVideo",)
_WRITES = "it writes files where it is told to"
_OWN_MODULE = "Put it in a module that all hosts have, and name that module in imports=."
_MAX_ID = 200
_MAX_WRAPPERS = 100
_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_REFERENCE = re.compile(rf"({_NAME}):({_NAME})", re.ASCII)
_ENV_ID = re.compile(rf"(?:({_NAME}):)?((?:[\w-]+/)?[\w.-]+)", re.ASCII)


class Recipe(NamedTuple):
    """How one environment is made.

    Attributes:
        env_id: for `gymnasium.make`.
        kwargs: for `gymnasium.make`.
        wrappers: applied in this order.
    """

    env_id: str
    kwargs: dict[str, Any]
    wrappers: tuple[Wrapper, ...]


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """What nodes shall build.

    Attributes:
        recipes: the different ones, each as `recipe_to_data` gives it.
        of_slot: for every slot the index of its recipe.
        autoreset_mode: when an environment whose episode is over is reset.
        rebuild: whether a fresh environment takes the place of one that raised.
        worker_memory: how much a worker may have, "" for any amount; it travels beside the data, in the message.
    """

    recipes: Sequence[Any]
    of_slot: Sequence[int]
    autoreset_mode: AutoresetMode
    rebuild: bool
    worker_memory: str = ""

    def to_data(self, slots: range) -> tuple[Any, ...]:
        """The share of a node that has these slots.

        Example:
            >>> BuildOrder([["CartPole-v1", {}, []]], [0, 0, 0], AutoresetMode.DISABLED, False).to_data(range(1, 3))
            ([['CartPole-v1', {}, []]], [0, 0], <AutoresetMode.DISABLED: 'Disabled'>, False)
        """
        return self.recipes, self.of_slot[slots.start : slots.stop], self.autoreset_mode, self.rebuild

    @classmethod
    def from_data(cls, data: Any) -> BuildOrder:
        """Undo `to_data`; what the recipes are is for `recipe_from_data` to find out.

        Raises:
            ProtocolError: the data is no order.
        """
        recipes, of_slot, mode, rebuild = parts_of(data, 4, "an order to build environments")
        if any(type(part) not in (list, tuple) for part in (recipes, of_slot)):
            raise ProtocolError("an order to build environments must have a list of recipes, and one of their slots.")
        if not all(type(index) is int and 0 <= index < len(recipes) for index in of_slot):
            raise ProtocolError(f"an order to build environments has {len(recipes)} recipes, and asks for others.")
        if not isinstance(mode, AutoresetMode) or type(rebuild) is not bool:
            raise ProtocolError(
                f"an order to build environments has the autoreset mode {shown(mode)} and rebuild={shown(rebuild)}."
            )
        return cls(recipes, of_slot, mode, rebuild)


def recipe_to_data(env_id: str, kwargs: Mapping[str, Any], wrappers: Sequence[Wrapper] = ()) -> list[Any]:
    """[id, arguments, references of the wrappers]. Whether the arguments are plain is for the codec to find out.

    Raises:
        ConfigError: a wrapper is not to be found by its name, or the id is none.

    Example:
        >>> from gymnasium.wrappers import TimeLimit
        >>> recipe_to_data("CartPole-v1", {}, [functools.partial(TimeLimit, max_episode_steps=9)])
        ['CartPole-v1', {}, [['gymnasium.wrappers.common:TimeLimit', [], {'max_episode_steps': 9}]]]
    """
    if not isinstance(env_id, str) or len(env_id) > _MAX_ID or not _ENV_ID.fullmatch(env_id):
        raise ConfigError(f"id={str(env_id)[:40]!r} is not an environment id such as 'CartPole-v1' or 'module:Id-v0'.")
    return [env_id, dict(kwargs), [_wrapper_to_data(wrapper) for wrapper in wrappers]]


def recipe_from_data(data: Any, allowed_modules: Collection[str]) -> Recipe:
    """Undo `recipe_to_data`, on a host that has imported these modules by itself.

    Raises:
        ProtocolError: the data is no recipe.
        ConfigError: a module was not named on this host's command line.

    Example:
        >>> recipe_from_data(["CartPole-v1", {}, []], ())
        Recipe(env_id='CartPole-v1', kwargs={}, wrappers=())
    """
    env_id, kwargs, wrappers = parts_of(data, 3, "a recipe")
    _check_kwargs(kwargs)
    if type(wrappers) not in (list, tuple) or len(wrappers) > _MAX_WRAPPERS:
        raise ProtocolError(f"wrappers must be a list of at most {_MAX_WRAPPERS}.")
    found = tuple(_wrapper_from_data(part, allowed_modules) for part in wrappers)
    return Recipe(check_env_id(env_id, allowed_modules), dict(kwargs), found)


def check_env_id(env_id: Any, allowed_modules: Collection[str]) -> str:
    """The id, if `gymnasium.make` will import nothing for it that this host has not imported by itself.

    Example:
        >>> check_env_id("ALE/Pong-v5", ())
        'ALE/Pong-v5'
    """
    match = _ENV_ID.fullmatch(env_id) if type(env_id) is str and len(env_id) <= _MAX_ID else None
    if match is None:
        raise ProtocolError(f"{shown(env_id)} is no environment id.")
    module = match[1]
    if module is not None and (module not in allowed_modules or module not in sys.modules):
        raise ConfigError(
            f"the environment {env_id!r} needs the module {module!r}, which this host was not told to import. "
            f"{_start_with(module)}"
        )
    return match[0]


def resolve_wrapper(reference: Any, allowed_modules: Collection[str]) -> Wrapper:
    """The class or function that a reference names, if this host has imported its module by itself.

    Args:
        reference: "module:qualname", as text from anybody.
        allowed_modules: what the host was told to import; what lies below them is allowed too. The wrappers of
            Gymnasium and of this library are always allowed, but for those that write files, and nothing else of
            them.

    Raises:
        ProtocolError: this is no reference.
        ConfigError: the module was not imported, or does not define this.

    Example:
        >>> resolve_wrapper("gymnasium.wrappers.common:TimeLimit", ())
        <class 'gymnasium.wrappers.common.TimeLimit'>
    """
    match = _REFERENCE.fullmatch(reference) if type(reference) is str and len(reference) <= _MAX_ID else None
    if match is None:
        raise ProtocolError(f"{shown(reference)} is no reference to a wrapper.")
    if reference in _WRITERS:
        raise ConfigError(f"the wrapper {reference!r} is not for a node: {_WRITES}. {_OWN_MODULE}")
    module, name = match.groups()
    if not _below(module, (*_EVERYWHERE, *allowed_modules)) or module not in sys.modules:
        raise ConfigError(
            f"the wrapper {reference!r} is in a module that this host was not told to import. {_start_with(module)}"
        )
    found = _defined(module, name)
    if found is None:
        raise ConfigError(
            f"the wrapper {reference!r} is not defined in that module on this host. "
            "Install the same version of it on all hosts."
        )
    return found


def _below(module: str, known: Collection[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in known)


def _start_with(module: str) -> str:
    return f"Start its node with --import {module}, and install the module there."


def _defined(module: str, name: str) -> Wrapper | None:
    """The class or function with this name, if the module itself defines it."""
    found: Any = sys.modules[module]
    for part in name.split("."):
        # `vars`, because attributes may run code; and only into classes, because an instance is not ours to look into.
        if not isinstance(found, (types.ModuleType, type)) or (found is not sys.modules[module] and part[:2] == "__"):
            return None
        found = vars(found).get(part)
    if not isinstance(found, (type, types.FunctionType)):
        return None
    if found.__module__ != module or found.__qualname__ != name:
        return None
    # Gymnasium has functions that import what they are told to.
    named = not _below(module, _EVERYWHERE)
    return found if named or (isinstance(found, type) and issubclass(found, gymnasium.Wrapper)) else None


def _wrapper_to_data(wrapper: Any) -> list[Any]:
    if type(wrapper) is functools.partial:
        return [_reference_of(wrapper.func), list(wrapper.args), dict(wrapper.keywords)]
    return [_reference_of(wrapper), [], {}]


def _reference_of(wrapper: Any) -> str:
    if not isinstance(wrapper, (type, types.FunctionType)):
        raise ConfigTypeError(
            f"the wrapper {str(wrapper)[:80]} cannot travel to other hosts: it must be a class, a function, or a "
            "functools.partial of these."
        )
    module, name = str(wrapper.__module__), wrapper.__qualname__
    reference = f"{module}:{name}"
    reason = None
    if module in ("__main__", "__mp_main__"):
        reason = "it is defined in the program that you started"
    elif "<" in name:
        reason = "it is a lambda, or defined inside a function"
    elif reference in _WRITERS:
        reason = _WRITES
    elif module not in sys.modules or _defined(module, name) is not wrapper:
        reason = "its module does not have it under that name"
    if reason or not _REFERENCE.fullmatch(reference):
        raise ConfigError(
            f"the wrapper {reference[:_MAX_ID]!r} cannot travel to other hosts: {reason or 'its name is no name'}. "
            f"{_OWN_MODULE}"
        )
    return reference


def _wrapper_from_data(data: Any, allowed_modules: Collection[str]) -> Wrapper:
    reference, args, kwargs = parts_of(data, 3, "a wrapper")
    _check_kwargs(kwargs)
    if type(args) not in (list, tuple):
        raise ProtocolError("the arguments of a wrapper must be a list.")
    wrapper = resolve_wrapper(reference, allowed_modules)
    return functools.partial(wrapper, *args, **kwargs) if args or kwargs else wrapper


def _check_kwargs(kwargs: Any) -> None:
    if type(kwargs) is not dict or not all(type(key) is str for key in kwargs):
        raise ProtocolError("keyword arguments must be a dictionary with text for keys.")
