"""make_vec: from an environment id to a batch."""

from __future__ import annotations

import copy as copying
import dataclasses
import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from clusterenv.config import OnLoss, check_num_envs
from clusterenv.env.vector import ClusterEnv
from clusterenv.errors import ConfigError, ConfigTypeError, named
from clusterenv.wire.envs import recipe_to_data

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterenv.config import Cluster, Timeouts

    Wrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]

_MAX_ID = 200

# The arguments of `ClusterEnv` that change something and that `make_vec` does not name.
_FOR_BATCH = ("autoreset_mode", "copy", "observation_mode", "max_concurrency")


@dataclass(frozen=True, slots=True)
class EnvFactory:
    """Makes one environment on a worker. It carries the whole spec, so the worker needs no registration."""

    spec: EnvSpec
    kwargs: Mapping[str, Any]
    wrappers: tuple[Wrapper, ...]
    module: str = ""  # that registers the environment, if the id named one

    @classmethod
    def of(
        cls, id: str | EnvSpec, wrappers: Sequence[Wrapper] = (), *, check: bool = True, **kwargs: Any
    ) -> EnvFactory:
        """One environment as `make_vec` makes it, for `ClusterEnv([...])` with different ones.

        Args:
            id: an environment id, "module:id", or an `EnvSpec`.
            wrappers: applied to it, on the worker.
            check: whether Gymnasium's passive checker looks on; it warns of the same things in every copy.
            **kwargs: for the environment.

        Example:
            >>> fast, slow = (EnvFactory.of("clusterenv/Recall-v0", delay=delay) for delay in (2, 20))
            >>> envs = ClusterEnv([fast, slow, fast, slow], cluster="inproc")
            >>> envs.close()
        """
        spec = _find_spec(id)
        _check_entry_point(spec)
        merged = {**spec.kwargs, **({} if check else {"disable_env_checker": True}), **kwargs}
        return cls(_without_kwargs(spec), merged, _checked_wrappers(wrappers), _module_of(id))

    def recipe(self) -> tuple[str, list[Any]]:
        """The module, and how another host makes the same environment by name."""
        known = gymnasium.registry.get(self.spec.id)
        if known is None or _without_kwargs(known) != self.spec:
            raise ConfigError(
                f"{self.spec.id} is not what this id is registered as, and other hosts get the id alone. Register "
                "the environment under an id of its own, in a module."
            )
        return self.module, recipe_to_data(self.spec.id, self.kwargs, self.wrappers)

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make the environment and wrap it."""
        env = gymnasium.make(copying.deepcopy(self.spec), **self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env


@dataclass(frozen=True, slots=True)
class VectorFactory:
    """Makes one vectorised environment on a worker, by the spec's `vector_entry_point`."""

    spec: EnvSpec
    kwargs: Mapping[str, Any]

    def __call__(self, num_envs: int) -> Any:
        """Make it with this many rows."""
        entry_point = self.spec.vector_entry_point
        create = entry_point if callable(entry_point) else load_env_creator(str(entry_point))
        kwargs = dict(self.kwargs)
        if self.spec.max_episode_steps is not None:
            kwargs.setdefault("max_episode_steps", self.spec.max_episode_steps)
        return create(num_envs=num_envs, **kwargs)


def make_vec(
    id: str | EnvSpec,
    num_envs: int = 1,
    vectorization_mode: Any = None,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Wrapper] | None = None,
    *,
    cluster: str | Cluster = "local",
    on_loss: str | OnLoss = OnLoss.RESTART,
    timeouts: Timeouts | None = None,
    infos: str = "gymnasium",
    slot_kwargs: Sequence[Mapping[str, Any]] | None = None,
    **kwargs: Any,
) -> ClusterEnv:
    """Make a batch of environments on workers. `gymnasium.make_vec`, plus where they run.

    Args:
        id: an environment id, "module:id", or an `EnvSpec`.
        num_envs: how many.
        vectorization_mode: None or "sync": a worker steps its environments one after the other. "vector_entry_point":
            a worker steps one vectorised environment, made by the spec's `vector_entry_point`.
        vector_kwargs: for `ClusterEnv`, for example `{"autoreset_mode": "SameStep"}`.
        wrappers: applied to each environment, on the worker.
        cluster: where the workers run: "local:4", "local" (a worker per core), "inproc", or a typed object.
        on_loss: "restart", "shrink" or "raise": what happens when a worker is lost or an environment raises.
        timeouts: how long we wait before something counts as lost.
        infos: the dialect of the infos, "gymnasium" or "gymnasium-0.29".
        slot_kwargs: one dictionary per slot, added to `kwargs` for its environment.
        **kwargs: for the environments.

    Returns:
        A batch that behaves as `gymnasium.vector.SyncVectorEnv` does.

    Raises:
        ConfigError: the request is wrong; nothing was started.
        EnvError: an environment could not be made.
        LaunchError: a worker could not be started.

    Example:
        >>> envs = make_vec("CartPole-v1", num_envs=4, cluster="inproc")
        >>> envs
        ClusterEnv(CartPole-v1, num_envs=4)
        >>> envs.close()
    """
    spec = _find_spec(id)
    merged = {**spec.kwargs, **kwargs}
    # The spec of a batch, `envs.spec`, holds these arguments too: whoever passes it here gets the same batch again.
    num_envs = check_num_envs(merged.pop("num_envs", num_envs))
    mode = _vectorization_mode(merged.pop("vectorization_mode", vectorization_mode))
    vector_kwargs = _checked_vector_kwargs(merged.pop("vector_kwargs", vector_kwargs))
    wrappers = _checked_wrappers(merged.pop("wrappers", wrappers) or ())
    base = _without_kwargs(spec)
    shared: dict[str, Any] = {"cluster": cluster, "on_loss": on_loss, "timeouts": timeouts, "infos": infos}
    if mode == "vector_entry_point":
        _refuse_for_vector(base, vector_kwargs, wrappers, slot_kwargs)
        envs = ClusterEnv.from_blocks(VectorFactory(base, merged), num_envs, **shared)
    else:
        factories = _factories(EnvFactory(base, merged, wrappers, _module_of(id)), slot_kwargs, num_envs)
        envs = ClusterEnv(factories, **{**shared, **vector_kwargs})
    envs.spec = _spec_of(base, merged, num_envs, mode, vector_kwargs, wrappers)
    return envs


def make_remote(
    num_envs: int,
    env_id: str | EnvSpec,
    *,
    env_wrappers: Sequence[Wrapper] | None = None,
    env_vectorization_mode: Any = None,
    **kwargs: Any,
) -> ClusterEnv:
    """The entry point behind `gymnasium.make_vec("clusterenv:clusterenv/Remote-v0", env_id=...)`.

    Gymnasium keeps `vectorization_mode` for itself there, and refuses `vector_kwargs` and `wrappers`. So they come in
    other ways.

    Args:
        num_envs: how many.
        env_id: as `id` in `make_vec`.
        env_wrappers: as `wrappers` there.
        env_vectorization_mode: as `vectorization_mode` there.
        **kwargs: as there; what is one of `vector_kwargs` there (`autoreset_mode`, `copy`, `observation_mode`,
            `max_concurrency`) stands here by itself.
    """
    for_batch = {name: kwargs.pop(name) for name in _FOR_BATCH if name in kwargs}
    return make_vec(env_id, num_envs, env_vectorization_mode, for_batch, env_wrappers, **kwargs)


def _factories(model: EnvFactory, slot_kwargs: Sequence[Mapping[str, Any]] | None, num_envs: int) -> list[EnvFactory]:
    _check_entry_point(model.spec)
    if slot_kwargs is not None:
        _check_slot_kwargs(slot_kwargs, num_envs)
    factories = []
    for slot in range(num_envs):
        mine = {**model.kwargs, **(slot_kwargs[slot] if slot_kwargs else {})}
        if slot > 0:
            # Gymnasium's passive checker warns of the same things in every environment; once is enough.
            mine.setdefault("disable_env_checker", True)
        factories.append(dataclasses.replace(model, kwargs=mine))
    return factories


def _check_entry_point(spec: EnvSpec) -> None:
    if spec.entry_point is None:
        raise ConfigError(f"{spec.id} has no entry_point; pass vectorization_mode='vector_entry_point'.")


def _check_slot_kwargs(slot_kwargs: object, num_envs: int) -> None:
    if isinstance(slot_kwargs, (str, Mapping)) or not isinstance(slot_kwargs, Collection):
        raise ConfigTypeError(f"slot_kwargs={slot_kwargs!r} must be a list with one dictionary per slot.")
    if len(slot_kwargs) != num_envs:
        raise ConfigError(f"slot_kwargs has {len(slot_kwargs)} entries for num_envs={num_envs}. Pass one per slot.")
    for slot, own in enumerate(slot_kwargs):
        if not isinstance(own, Mapping):
            raise ConfigTypeError(f"slot_kwargs[{slot}]={own!r} must be a dictionary, as in {{'gravity': 9.81}}.")


def _checked_vector_kwargs(vector_kwargs: object) -> dict[str, Any]:
    if not isinstance(vector_kwargs, (Mapping, type(None))):
        raise ConfigTypeError(
            f"vector_kwargs={vector_kwargs!r} must be a dictionary, as in {{'autoreset_mode': 'SameStep'}}, or None."
        )
    return dict(vector_kwargs or {})


def _checked_wrappers(wrappers: object) -> tuple[Wrapper, ...]:
    if not isinstance(wrappers, Iterable) or isinstance(wrappers, (str, type)):
        raise ConfigTypeError(f"wrappers={wrappers!r} must be a list of wrappers, as in [TimeAwareObservation].")
    listed = tuple(wrappers)
    for index, wrapper in enumerate(listed):
        if not callable(wrapper):
            raise ConfigTypeError(
                f"wrappers[{index}]={wrapper!r} must be a class of wrappers, or a function that takes an environment "
                "and returns one."
            )
    return listed


def _find_spec(id: object) -> EnvSpec:
    if isinstance(id, EnvSpec):
        return id
    if not isinstance(id, str):
        raise ConfigTypeError(f"id={id!r} must be an environment id such as 'CartPole-v1', or an EnvSpec.")
    if len(id) > _MAX_ID or not id.isprintable():
        raise ConfigError(f"id={id[:40]!r}... ({len(id)} characters) is not an environment id.")
    try:
        return gymnasium.envs.registration._find_spec(id)
    except gymnasium.error.Error as error:
        near = difflib.get_close_matches(id, gymnasium.registry, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        if ":" not in id and not near:
            hint = f" If it is one of yours, name the module that registers it: 'my_module:{id}'."
        raise ConfigError(f"unknown environment id {id!r}.{hint} {error}") from error
    except Exception as error:  # the module before the colon is the user's code
        module = id.partition(":")[0]
        hint, missing = "", getattr(error.__cause__, "name", None)  # Gymnasium raises another in its place
        if isinstance(error, ModuleNotFoundError) and missing and f"{module}.".startswith(f"{missing}."):
            hint = " Install it, or name its folder in PYTHONPATH (`PYTHONPATH=. clusterenv ...` for the current one)."
        raise ConfigError(f"the module {module!r} of id={id!r} cannot be imported: {named(error)}{hint}") from error


def _module_of(id: str | EnvSpec) -> str:
    """The module of "module:id", which registers the environment; "" without one."""
    return id.rpartition(":")[0] if isinstance(id, str) else ""


def _without_kwargs(spec: EnvSpec) -> EnvSpec:
    base = copying.deepcopy(spec)
    base.kwargs = {}
    return base


def _vectorization_mode(mode: Any) -> str:
    text = "sync" if mode is None else str(getattr(mode, "value", mode))
    if text == "async":
        raise ConfigError(
            "vectorization_mode='async' means one process per environment; cluster= takes its place here."
        )
    if text not in ("sync", "vector_entry_point"):
        raise ConfigError(f"vectorization_mode={mode!r} must be None, 'sync' or 'vector_entry_point'.")
    return text


def _refuse_for_vector(spec: EnvSpec, vector_kwargs: Any, wrappers: Any, slot_kwargs: Any) -> None:
    if spec.vector_entry_point is None:
        raise ConfigError(f"{spec.id} has no vector_entry_point. Leave vectorization_mode out.")
    given = {"vector_kwargs": vector_kwargs, "wrappers": wrappers, "slot_kwargs": slot_kwargs}
    for name, value in given.items():
        if value:
            raise ConfigError(f"{name} cannot be used with vectorization_mode='vector_entry_point'.")


def _spec_of(
    base: EnvSpec,
    kwargs: dict[str, Any],
    num_envs: int,
    mode: str,
    vector_kwargs: dict[str, Any],
    wrappers: tuple[Wrapper, ...],
) -> EnvSpec:
    """The spec of the batch, as `gymnasium.make_vec` would write it."""
    spec = copying.deepcopy(base)
    spec.kwargs = dict(kwargs)
    if num_envs != 1:
        spec.kwargs["num_envs"] = num_envs
    spec.kwargs["vectorization_mode"] = mode
    if vector_kwargs:
        spec.kwargs["vector_kwargs"] = vector_kwargs
    if wrappers:
        spec.kwargs["wrappers"] = wrappers
    return spec
