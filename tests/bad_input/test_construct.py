"""Bad arguments of constructors: a named error, and nothing is left or even started."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.wrappers import TimeAwareObservation

import clusterenv
from clusterenv import (
    ActionError,
    ClusterEnv,
    ClusterEnvError,
    ConfigError,
    ConfigTypeError,
    EnvError,
    LaunchError,
    ResultError,
    SpaceMismatch,
    Timeouts,
)
from tests.bad_input.envs import Custom, SpacedEnv
from tests.node.worlds import COUNTING
from tests.zoo import CountingEnv, counting

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

CLUSTERS = ["local:2", "inproc:2"]


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to start a process."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a process was started for a request that is wrong in itself")

    monkeypatch.setattr("clusterenv.node.supervisor.subprocess.Popen", refuse)


def made(**kwargs: Any) -> Callable[[], Any]:
    """A call of make_vec with one thing wrong."""
    arguments = {"id": "CartPole-v1", "num_envs": 2, "cluster": "local:2", **kwargs}
    return lambda: clusterenv.make_vec(**arguments)


def built(env_fns: Any = None, **kwargs: Any) -> Callable[[], Any]:
    """A call of the constructor with one thing wrong."""
    fns = counting(2) if env_fns is None else env_fns
    return lambda: ClusterEnv(fns, **{"cluster": "local:2", **kwargs})


def blocks(factory: Any = CartPoleVectorEnv, num_envs: Any = 2, **kwargs: Any) -> Callable[[], Any]:
    """A call of from_blocks with one thing wrong."""
    return lambda: ClusterEnv.from_blocks(factory, num_envs, **{"cluster": "local:2", **kwargs})


BEFORE_ANYTHING_STARTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "num_envs 0": (made(num_envs=0), ConfigError, "num_envs=0"),
    "no env_fns": (built([]), ConfigError, "env_fns is empty"),
    "num_envs 0 of blocks": (blocks(num_envs=0), ConfigError, "num_envs=0"),
    "num_envs -1": (made(num_envs=-1), ConfigError, "num_envs=-1"),
    "num_envs 2.5": (made(num_envs=2.5), ConfigTypeError, "num_envs=2.5"),
    "num_envs text": (made(num_envs="4"), ConfigTypeError, "num_envs='4'"),
    "num_envs None": (made(num_envs=None), ConfigTypeError, "num_envs=None"),
    "num_envs NaN": (made(num_envs=float("nan")), ConfigTypeError, "num_envs=nan"),
    "num_envs True": (made(num_envs=True), ConfigTypeError, "num_envs=True"),
    "num_envs True of blocks": (blocks(num_envs=True), ConfigTypeError, "num_envs=True"),
    "num_envs 10**9": (made(num_envs=10**9), ConfigError, "num_envs=1000000000"),
    "num_envs 10**400": (made(num_envs=10**400), ConfigError, "num_envs=1"),
    "unknown id": (made(id="CartPol-v1"), ConfigError, "Did you mean 'CartPole-v1'"),
    "unknown version": (made(id="CartPole-v99"), ConfigError, "CartPole-v99"),
    "nothing like it": (made(id="Xyzzy-v0"), ConfigError, "unknown environment id 'Xyzzy-v0'"),
    "empty": (made(id=""), ConfigError, "''"),
    "not a text": (made(id=7), ConfigTypeError, "id=7"),
    "None": (made(id=None), ConfigTypeError, "id=None"),
    "newline": (made(id="CartPole\n-v1"), ConfigError, "CartPole\\n-v1"),
    "NUL": (made(id="CartPole\0-v1"), ConfigError, "CartPole\\x00-v1"),
    "escape": (made(id="\x1b[31mCartPole-v1"), ConfigError, "\\x1b[31m"),
    "ten megabytes": (made(id="x" * 10**7), ConfigError, "10000000 characters"),
    "no such module": (made(id="no_such_module:Env-v0"), ConfigError, "no_such_module"),
    "not a module": (made(id="a/b:Env-v0"), ConfigError, "a/b"),
    "two colons": (made(id="os:path:Env-v0"), ConfigError, "os:path:Env-v0"),
    "nothing before the colon": (made(id=":CartPole-v1"), ConfigError, ":CartPole-v1"),
    "limits as a dictionary": (built(timeouts={"step_s": 5}), ConfigTypeError, "{'step_s': 5}"),
    "limits as a number": (made(timeouts=5), ConfigTypeError, "timeouts=5"),
    "limits as the class": (built(timeouts=Timeouts), ConfigTypeError, "timeouts=<class"),
    "cluster": (made(cluster="locl:2"), ConfigError, "Did you mean 'local'"),
    "cluster None": (built(cluster=None), ConfigTypeError, "cluster=None"),
    "cluster of no workers": (blocks(cluster="local:0"), ConfigError, "local:0"),
    "on_loss": (made(on_loss="restrat"), ConfigError, "Did you mean 'restart'"),
    "on_loss None": (built(on_loss=None), ConfigError, "unknown on_loss 'None'"),
    "copy": (made(vector_kwargs={"copy": "no"}), ConfigTypeError, "copy='no' must be True or False"),
    "copy None": (built(copy=None), ConfigTypeError, "copy=None"),
    "copy of blocks": (blocks(copy=2), ConfigTypeError, "copy=2"),
    "infos": (made(infos="gym"), ConfigError, "unknown infos dialect 'gym'"),
    "infos of blocks": (blocks(infos="gym"), ConfigError, "unknown infos dialect 'gym'"),
    "old infos of blocks": (blocks(infos="gymnasium-0.29"), ConfigError, "infos='gymnasium-0.29' cannot be had of"),
    "infos None": (built(infos=None), ConfigError, "unknown infos dialect"),
    "autoreset_mode": (built(autoreset_mode="NextStp"), ConfigError, "Did you mean 'NextStep'"),
    "autoreset_mode None": (built(autoreset_mode=None), ConfigError, "unknown autoreset_mode 'None'"),
    "autoreset_mode a list": (built(autoreset_mode=["NextStep"]), ConfigError, "unknown autoreset_mode"),
    "observation_mode": (built(observation_mode="sam"), ConfigError, "sam"),
    "observation_mode numbers": (built(observation_mode=(1, 2)), ConfigTypeError, "int"),
    "observation_mode a list": (built(observation_mode=["same"]), ConfigError, "same"),
    "max_concurrency 0": (built(max_concurrency=0), ConfigError, "got 0"),
    "max_concurrency 1.5": (built(max_concurrency=1.5), ConfigTypeError, "float"),
    "max_concurrency True": (built(max_concurrency=True), ConfigTypeError, "bool"),
    "worker": (built(worker=print), ConfigError, "worker= must be None"),
    "env_fns a function": (built(CountingEnv), ConfigTypeError, "must be a list of functions"),
    "env_fns an environment": (built(CountingEnv()), ConfigTypeError, "must be a list of functions"),
    "env_fns a number": (built(3), ConfigTypeError, "env_fns=3"),
    "env_fns environments": (built([CountingEnv()]), ConfigTypeError, "not the environment"),
    "env_fns a text": (built("ab"), ConfigTypeError, "env_fns[0]='a'"),
    "env_fns with None": (built([CountingEnv, None]), ConfigTypeError, "env_fns[1]=None"),
    "factory of blocks": (blocks(factory=3), ConfigTypeError, "factory=3"),
    "vectorization_mode": (made(vectorization_mode="asinc"), ConfigError, "'asinc'"),
    "vectorization_mode async": (made(vectorization_mode="async"), ConfigError, "cluster= takes its place"),
    "slot_kwargs too few": (made(slot_kwargs=[{}]), ConfigError, "slot_kwargs has 1 entries for num_envs=2"),
    "slot_kwargs no dictionaries": (
        made(slot_kwargs=[{}, 3]),
        ConfigTypeError,
        "slot_kwargs[1]=3 must be a dictionary",
    ),
    "slot_kwargs one for all": (
        made(slot_kwargs={"g": 3}),
        ConfigTypeError,
        "must be a list with one dictionary per slot",
    ),
    "slot_kwargs no list": (made(slot_kwargs=3), ConfigTypeError, "slot_kwargs=3 must be a list"),
    "wrappers one": (made(wrappers=TimeAwareObservation), ConfigTypeError, "TimeAwareObservation'> must be a list"),
    "wrappers names": (made(wrappers=["TimeLimit"]), ConfigTypeError, "wrappers[0]='TimeLimit' must be a class"),
    "wrappers text": (made(wrappers="TimeLimit"), ConfigTypeError, "wrappers='TimeLimit' must be a list"),
    "wrappers with blocks": (
        made(vectorization_mode="vector_entry_point", wrappers=[lambda env: env]),
        ConfigError,
        "wrappers cannot be used",
    ),
    "no vector_entry_point": (
        made(id="MountainCar-v0", vectorization_mode="vector_entry_point"),
        ConfigError,
        "no vector_entry_point",
    ),
    "unknown vector_kwargs": (made(vector_kwargs={"colour": 1}), TypeError, "colour"),
}


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("call", "kind", "says"), BEFORE_ANYTHING_STARTS.values(), ids=[*BEFORE_ANYTHING_STARTS.keys()]
)
def test_refused_before_anything_starts(call: Callable[[], Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert says in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_slots_that_do_not_divide_are_split_all_the_same() -> None:
    envs = ClusterEnv(counting(5), cluster="local:2")
    try:
        assert envs.reset(seed=1)[0].tolist() == [[slot, 0] for slot in range(5)]
    finally:
        envs.close()


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("error", ["ImportError('missing part')", "ZeroDivisionError()", "SyntaxError('bad')"])
def test_a_module_that_cannot_be_imported(error: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text(f"raise {error}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_module", raising=False)
    with pytest.raises(ConfigError, match="broken_module"):
        clusterenv.make_vec("broken_module:Env-v0", num_envs=2, cluster="local:2")


# From here on workers are started to find out, and must be gone afterwards (the leak check of every test sees to that).

DIFFERENT: dict[str, tuple[list[Callable[[], Any]], str]] = {
    "observation shape": ([SpacedEnv, lambda: SpacedEnv(spaces.Box(0, 1, (3,)))], "observation space of slot"),
    "observation dtype": (
        [SpacedEnv, lambda: SpacedEnv(spaces.Box(0.0, 1e6, (2,), np.float64))],
        "observation space of slot",
    ),
    "observation bounds": ([SpacedEnv, lambda: SpacedEnv(spaces.Box(0, 2, (2,)))], "observation space of slot"),
    "observation kind": ([SpacedEnv, lambda: SpacedEnv(spaces.Discrete(3))], "observation space of slot"),
    "action": ([SpacedEnv, lambda: SpacedEnv(action_space=spaces.Discrete(4))], "action space of slot"),
}


@pytest.mark.parametrize(("cluster", "place"), [("inproc:2", 1), ("inproc:2", 3), ("local:2", 3)])
@pytest.mark.parametrize(("fns", "says"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_spaces_that_differ(fns: list[Callable[[], Any]], says: str, cluster: str, place: int) -> None:
    all_fns = [fns[0]] * 4
    all_fns[place] = fns[1]
    with pytest.raises(SpaceMismatch) as caught:
        ClusterEnv(all_fns, cluster=cluster)
    assert f"{says} {place}" in str(caught.value)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_observations_that_may_differ_must_share_shape_and_dtype(cluster: str) -> None:
    with pytest.raises(SpaceMismatch):
        ClusterEnv(
            [SpacedEnv, lambda: SpacedEnv(spaces.Box(0, 1, (3,)))], cluster=cluster, observation_mode="different"
        )


UNBATCHABLE: dict[str, spaces.Space[Any]] = {
    "custom": Custom(),
    "graph": spaces.Graph(spaces.Box(0, 1, (2,)), None),
    "sequence": spaces.Sequence(spaces.Discrete(3)),
    "text": spaces.Text(5),
    "one of": spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (1,))]),
    "nested": spaces.Dict(a=spaces.Text(3), b=spaces.Box(0, 1, (2,))),
}


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("space", UNBATCHABLE.values(), ids=UNBATCHABLE.keys())
def test_spaces_that_fit_no_array_work(space: spaces.Space[Any], cluster: str) -> None:
    envs = ClusterEnv([lambda: SpacedEnv(observation_space=space)] * 2, cluster=cluster)
    try:
        for observations in (envs.reset(seed=1)[0], envs.step([1, 1])[0]):
            assert envs.observation_space.contains(observations)
    finally:
        envs.close()


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_an_empty_box_works(shape: tuple[int, ...], cluster: str) -> None:
    envs = ClusterEnv([lambda: SpacedEnv(spaces.Box(0, 1, shape))] * 2, cluster=cluster)
    try:
        assert envs.reset(seed=1)[0].shape == (2, *shape)
    finally:
        envs.close()


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_box_of_ten_thousand_million_elements_is_refused(cluster: str) -> None:
    with pytest.raises(ConfigError, match="GiB"):
        ClusterEnv([lambda: SpacedEnv(shape=(10**5, 10**5))] * 2, cluster=cluster)


def test_more_than_a_node_can_send_at_once_is_refused_when_the_cluster_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with the first step, by a connection that breaks. Three slots are on the first node, of 8 bytes each."""
    monkeypatch.setattr("clusterenv.node.rows.MAX_FRAME_BYTES", 20)
    with pytest.raises(ConfigError, match=r"have 24 bytes of observations .* at most 2 environments each\.$"):
        clusterenv.make_vec(COUNTING, num_envs=5, cluster="tcp:nodes=2,workers=1")


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize(
    ("fns", "kind", "says"),
    [
        ([CountingEnv, lambda: 5], ClusterEnvError, "slot 1"),
        ([CountingEnv, lambda: None], ClusterEnvError, "slot 1"),
        ([lambda: 5, CountingEnv], ClusterEnvError, "slot 0"),
        ([CountingEnv, lambda: 1 / 0], ZeroDivisionError, "slot 1"),
        ([CountingEnv, lambda missing: CountingEnv()], TypeError, "missing"),
    ],
    ids=["a number", "None", "first a number", "raises", "wants an argument"],
)
def test_a_factory_that_makes_no_environment(
    fns: list[Callable[[], Any]], kind: type[Exception], says: str, cluster: str
) -> None:
    with pytest.raises(kind) as caught:
        ClusterEnv(fns, cluster=cluster)
    assert isinstance(caught.value, ClusterEnvError)
    assert says in str(caught.value)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize(
    ("factory", "kind", "says"),
    [
        (lambda count: CartPoleVectorEnv(count + 1), ValueError, r"factory\(2\) returned a .* with 3 rows"),
        (lambda count: CountingEnv(), TypeError, "no num_envs"),
        (lambda count: 5, TypeError, "not a vectorised environment"),
    ],
    ids=["one row more", "a single one", "a number"],
)
def test_a_factory_of_blocks_that_makes_something_else(
    factory: Callable[[int], Any], kind: type[Exception], says: str, cluster: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        ClusterEnv.from_blocks(factory, 4, cluster=cluster)
    assert isinstance(caught.value, EnvError)


class Weird(CartPoleVectorEnv):
    """Resets in a way of its own."""

    metadata: dict[str, Any] = {**CartPoleVectorEnv.metadata, "autoreset_mode": "weird"}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_blocks_that_reset_in_a_way_of_their_own_are_refused(cluster: str) -> None:
    with pytest.raises(ConfigError, match=r"has an unknown autoreset_mode 'weird'\. .*NextStep"):
        ClusterEnv.from_blocks(Weird, 2, cluster=cluster)


def test_an_unknown_argument_of_the_environment_names_the_slot() -> None:
    with pytest.raises(EnvError, match="colour") as caught:
        clusterenv.make_vec("CartPole-v1", num_envs=2, cluster="local:2", colour="red")
    assert isinstance(caught.value, TypeError)
    assert caught.value.slot == 0


def test_a_factory_that_cannot_travel_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr("clusterenv.node.supervisor.subprocess.Popen", None)
    lock = threading.Lock()
    with pytest.raises(ResultError, match="lock"):
        ClusterEnv([lambda: lock], cluster="local:2")  # type: ignore[list-item, return-value]


def test_a_platform_without_what_we_need_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from clusterenv.transport import wake

    monkeypatch.setattr(wake, "_SYS_FUTEX", None)
    with pytest.raises(LaunchError, match="inproc"):
        ClusterEnv(counting(2), cluster="local:2")


def test_the_error_of_an_action_is_a_config_error_too() -> None:
    assert issubclass(ActionError, ConfigError)
