"""Bad arguments of a running batch: a named error, and the batch is as good as before."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

import clusterenv
from clusterenv import ActionError, ClusterEnv, ConfigError, ConfigTypeError, EnvError, ResultError
from tests.bad_input.envs import OddResults, SpacedEnv
from tests.faults.kit import Gate, batch, each
from tests.node.worlds import COUNTING
from tests.zoo import counting

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

    Use = Callable[[ClusterEnv], Any]

NAN = float("nan")


@pytest.fixture(scope="module", params=["local:2", "inproc:2"])
def shared(request: pytest.FixtureRequest) -> Iterator[ClusterEnv]:
    """One batch for all the tests of this module: what one breaks, the next finds."""
    envs = ClusterEnv(each(4, OddResults), cluster=request.param)
    yield envs
    envs.close()


@pytest.fixture
def envs(shared: ClusterEnv) -> ClusterEnv:
    """The shared batch, in its second step."""
    shared.reset(seed=1)
    shared.step([1] * 4)
    return shared


def is_usable(envs: ClusterEnv) -> None:
    """The next step is the second, for every slot: nothing was stepped, reset or lost in between."""
    observations, rewards, _, truncated, _ = envs.step([0, 1, 2, 1])
    assert observations.tolist() == [[slot, 2] for slot in range(4)]
    assert rewards.tolist() == [0, 1, 2, 1]
    assert not truncated.any()


def masked(mask: Any) -> Use:
    return lambda envs: envs.reset(options={"reset_mask": mask})


class OnAnotherDevice:
    """What a tensor on a GPU does when NumPy asks for its values."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")


BAD_RESETS: dict[str, tuple[Use, type[Exception], str]] = {
    "seed -1": (lambda envs: envs.reset(seed=-1), ConfigError, "seed=-1"),
    "seeds too few": (lambda envs: envs.reset(seed=[1, 2]), ConfigError, "2 entries"),
    "seeds too many": (lambda envs: envs.reset(seed=[1] * 5), ConfigError, "5 entries"),
    "no seeds": (lambda envs: envs.reset(seed=[]), ConfigError, "0 entries"),
    "one seed is negative": (lambda envs: envs.reset(seed=[1, 2, -3, 4]), ConfigError, "seed=-3"),
    "one seed is a float": (lambda envs: envs.reset(seed=[1, 2.0, 3, 4]), ConfigTypeError, "seed=2.0"),  # type: ignore[list-item]
    "seed 2**70": (lambda envs: envs.reset(seed=2**70), ConfigError, f"seed={2**70}"),
    "seed 2**63": (lambda envs: envs.reset(seed=2**63), ConfigError, f"seed={2**63}"),
    "seed a float": (lambda envs: envs.reset(seed=1.5), ConfigTypeError, "seed=1.5"),  # type: ignore[arg-type]
    "seed a text": (lambda envs: envs.reset(seed="abc"), ConfigTypeError, "seed='abc'"),  # type: ignore[arg-type]
    "seed True": (lambda envs: envs.reset(seed=True), ConfigTypeError, "seed=True"),
    "seed an array without dimensions": (
        lambda envs: envs.reset(seed=np.array(3)),  # type: ignore[arg-type]
        ConfigTypeError,
        "seed=array(3)",
    ),
    "seed a dictionary": (lambda envs: envs.reset(seed={0: 1}), ConfigTypeError, "seed={0: 1}"),  # type: ignore[arg-type]
    "seed a generator": (lambda envs: envs.reset(seed=iter([1])), ConfigTypeError, "seed="),  # type: ignore[arg-type]
    "options a list": (lambda envs: envs.reset(options=[1]), ConfigTypeError, "options=[1]"),  # type: ignore[arg-type]
    "options a text": (lambda envs: envs.reset(options="hard"), ConfigTypeError, "options='hard'"),  # type: ignore[arg-type]
    "mask too short": (masked(np.array([True])), ConfigError, "(1,)"),
    "mask of two dimensions": (masked(np.ones((4, 1), bool)), ConfigError, "(4, 1)"),
    "mask of ints": (masked(np.array([1, 0, 0, 1])), ConfigTypeError, "int64"),
    "mask a list": (masked([True] * 4), ConfigTypeError, "list"),
    "mask all false": (masked(np.zeros(4, bool)), ConfigError, "at least one True"),
    "mask None": (masked(None), ConfigTypeError, "NoneType"),
    "mask objects": (masked(np.array([True] * 4, object)), ConfigTypeError, "object"),
}

BAD_ACTIONS: dict[str, tuple[Any, str]] = {
    "too few": ([1, 1, 1], r"\(3,\)"),
    "too many": ([1] * 5, r"\(5,\)"),
    "none": ([], r"\(0,\)"),
    "a scalar": (1, r"\(\)"),
    "two dimensions": (np.ones((4, 1), np.int64), r"\(4, 1\)"),
    "None": (None, r"\(\)"),
    "float": (np.ones(4), "float64"),
    "float32": (np.ones(4, np.float32), "float32"),
    "NaN": (np.full(4, NAN), "float64"),
    "a list of floats": ([1.0, 1.0, 1.0, 0.5], "float64"),
    "complex": (np.ones(4, complex), "complex128"),
    "texts": (["1"] * 4, "<U1"),
    "objects": (np.array([1, None, 1, 1]), "object"),
    "out of bounds": ([1, 1, 3, 1], r"\b3\)? in row 2"),
    "negative": ([1, -1, 1, 1], r"-1\)? in row 1"),
    "far out": ([1, 2**62, 1, 1], rf"{2**62}\)? in row 1"),
    "past int64": ([1, 2**63, 1, 1], "float64|uint64|object"),
    "ragged": ([[1], [1, 2], 1, 1], "cannot be read as an array"),
    "a generator": ((1 for _ in range(4)), r"\(\)"),
    "a dictionary": ({0: 1}, r"\(\)"),
    "a set": ({0, 1, 2}, r"\(\)"),
    "another device": (OnAnotherDevice(), r"cpu\(\)"),
}

BAD_NAMES: dict[str, tuple[Use, type[Exception], str]] = {
    "call step": (lambda envs: envs.call("step", 1), ConfigError, "use `step` directly"),
    "call reset": (lambda envs: envs.call("reset"), ConfigError, "use `reset` directly"),
    "call close": (lambda envs: envs.call("close"), ConfigError, "use `close` directly"),
    "call _setattr": (lambda envs: envs.call("_setattr"), ConfigError, "_setattr"),
    "no such name": (lambda envs: envs.call("no_such_name"), AttributeError, "no_such_name"),
    "no such private name": (lambda envs: envs.get_attr("_no_such_name"), AttributeError, "_no_such_name"),
    "no such name to read": (lambda envs: envs.get_attr("no_such_name"), AttributeError, "no_such_name"),
    "empty": (lambda envs: envs.call(""), ConfigTypeError, "name=''"),
    "not a name": (lambda envs: envs.call("a b"), ConfigTypeError, "name='a b'"),
    "a dotted name": (lambda envs: envs.call("unwrapped.slot"), ConfigTypeError, "name='unwrapped.slot'"),
    "a number": (lambda envs: envs.call(5), ConfigTypeError, "name=5"),  # type: ignore[arg-type]
    "wrong arguments": (lambda envs: envs.call("double"), TypeError, "value"),
    "index too large": (lambda envs: envs.call("double", 1, indices=[4]), ConfigError, "slot 4"),
    "index negative": (lambda envs: envs.call("double", 1, indices=-1), ConfigError, "slot -1"),
    "index twice": (lambda envs: envs.call("double", 1, indices=[1, 1]), ConfigError, "[1, 1]"),
    "index a float": (lambda envs: envs.call("double", 1, indices=1.0), ConfigTypeError, "indices=1.0"),
    "indices ragged": (
        lambda envs: envs.call("double", 1, indices=[[0], [0, 1]]),
        ConfigTypeError,
        "indices=[[0], [0, 1]]",
    ),
    "no index": (lambda envs: envs.call("double", 1, indices=[]), ConfigTypeError, "indices=[]"),
    "set_attr too few": (lambda envs: envs.set_attr("x", [1, 2]), ConfigError, "`2` values"),
    "set_attr a bad name": (lambda envs: envs.set_attr("a b", 1), ConfigTypeError, "name='a b'"),
    "set_attr step": (lambda envs: envs.set_attr("step", 1), ConfigError, "step"),
}

OUT_OF_ORDER: dict[str, tuple[Use, type[Exception], str]] = {
    "step_wait": (lambda envs: envs.step_wait(), NoAsyncCallError, "step_async"),
    "reset_wait": (lambda envs: envs.reset_wait(), NoAsyncCallError, "reset_async"),
    "call_wait": (lambda envs: envs.call_wait(), NoAsyncCallError, "call_async"),
    "recv": (lambda envs: envs.recv(), NoAsyncCallError, "send"),
    "send no slots": (lambda envs: envs.send([], slots=[]), ConfigTypeError, "slots=[]"),
    "send a slot twice": (lambda envs: envs.send([1, 1], slots=[2, 2]), ConfigError, "[2, 2]"),
    "send a slot that is not there": (lambda envs: envs.send([1], slots=[4]), ConfigError, "slot 4"),
    "send a float": (lambda envs: envs.send([1], slots=[0.0]), ConfigTypeError, "slots=[0.0]"),
    "send too few actions": (lambda envs: envs.send([1], slots=[0, 1]), ActionError, "(1,)"),
}


@pytest.mark.parametrize(("use", "kind", "says"), BAD_RESETS.values(), ids=BAD_RESETS.keys())
def test_a_bad_reset(envs: ClusterEnv, use: Use, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as caught:
        use(envs)
    assert says in str(caught.value)
    is_usable(envs)


@pytest.mark.parametrize(("actions", "says"), BAD_ACTIONS.values(), ids=BAD_ACTIONS.keys())
def test_bad_actions(envs: ClusterEnv, actions: Any, says: str) -> None:
    for way in (envs.step, envs.step_async, envs.send):
        with pytest.raises(ActionError, match=says):
            way(actions)
    is_usable(envs)


@pytest.mark.parametrize(
    ("use", "kind", "says"), [*BAD_NAMES.values(), *OUT_OF_ORDER.values()], ids=[*BAD_NAMES, *OUT_OF_ORDER]
)
def test_a_bad_call(envs: ClusterEnv, use: Use, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as caught:
        use(envs)
    assert says in str(caught.value)
    is_usable(envs)


GOOD_ACTIONS: dict[str, Any] = {
    "a list": [0, 1, 2, 1],
    "a tuple": (0, 1, 2, 1),
    "int32": np.array([0, 1, 2, 1], np.int32),
    "uint8": np.array([0, 1, 2, 1], np.uint8),
    "non-contiguous": np.array([0, 9, 1, 9, 2, 9, 1, 9])[::2],
    "numpy scalars": [np.int64(0), np.int64(1), np.int8(2), np.int64(1)],
}


@pytest.mark.parametrize("actions", GOOD_ACTIONS.values(), ids=GOOD_ACTIONS.keys())
def test_actions_that_fit_are_taken(envs: ClusterEnv, actions: Any) -> None:
    assert envs.step(actions)[1].tolist() == [0, 1, 2, 1]


def test_read_only_actions_are_taken_and_left_alone(envs: ClusterEnv) -> None:
    actions = np.array([0, 1, 2, 1])
    actions.flags.writeable = False
    assert envs.step(actions)[1].tolist() == [0, 1, 2, 1]


class Tensor:
    """What a tensor on the CPU does when NumPy asks for its values. (Torch itself takes seconds to import.)"""

    def __init__(self, *values: float) -> None:
        self._values = np.array(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._values


def test_a_tensor_is_taken(envs: ClusterEnv) -> None:
    with pytest.raises(ActionError, match="float64"):
        envs.step(Tensor(0.0, 1.0, 2.0, 1.0))
    assert envs.step(Tensor(0, 1, 2, 1))[1].tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_actions_of_a_box(cluster: str) -> None:
    box = spaces.Box(-1, 1, (2,))
    with batch([lambda: SpacedEnv(action_space=box)] * 2, cluster=cluster) as envs:
        envs.reset(seed=1)
        for bad, says in (
            (np.full((2, 2), NAN, np.float32), "row 0 is not a number"),
            (np.array([[0, 0], [0, NAN]]), "row 1 is not a number"),
            (np.array([[0, 0], [0, 1e300]]), "the action [0.e+000 1.e+300] in row 1 is more than float32"),
            (np.array([[-1e39, 0], [np.inf, -np.inf]]), "in row 0 is more than float32"),
            (np.zeros((2, 3), np.float32), "(2, 3)"),
            (np.zeros((2, 2), complex), "complex128"),
        ):
            with pytest.raises(ActionError) as caught:
                envs.step(bad)
            assert says in str(caught.value)
        for good in (np.full((2, 2), 7.0), np.full((2, 2), np.inf, np.float32), [[0, 0], [1, 1]]):
            envs.step(good)
        assert envs.get_attr("steps") == (3, 3)


@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_actions_of_a_dictionary(cluster: str) -> None:
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.MultiBinary(2))
    with batch([lambda: SpacedEnv(action_space=space)] * 2, cluster=cluster) as envs:
        envs.reset(seed=1)
        good = {"a": [0, 1], "b": [[0, 1], [1, 1]]}
        for bad in ({"a": [0, 1]}, [0, 1], None, {**good, "b": [[0, 2], [0, 0]]}, {**good, "a": [0, 2]}, ([0, 1],)):
            with pytest.raises(ActionError):
                envs.step(bad)
        envs.step({**good, "c": "ignored"})
        assert envs.get_attr("steps") == (1, 1)


@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_a_step_before_the_first_reset(cluster: str) -> None:
    with batch(counting(4), cluster=cluster) as envs:
        for way in (envs.step, envs.step_async, envs.send):
            with pytest.raises(ResetNeeded):
                way([1] * 4)
        assert envs.reset(seed=1)[0].tolist() == [[slot, 0] for slot in range(4)]
        assert envs.step([1] * 4)[0].tolist() == [[slot, 1] for slot in range(4)]


@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_the_first_reset_cannot_be_a_part(cluster: str) -> None:
    with batch(counting(2), cluster=cluster) as envs:
        with pytest.raises(ConfigError, match="first reset"):
            envs.reset(options={"reset_mask": np.array([True, False])})
        envs.reset(options={"reset_mask": np.array([True, True])})


def test_options_that_cannot_travel_are_refused() -> None:
    with batch(counting(4)) as envs:
        envs.reset(seed=1)
        with pytest.raises(ResultError, match="lock"):
            envs.reset(options={"lock": threading.Lock()})
        assert envs.reset(seed=1)[0].tolist() == [[slot, 0] for slot in range(4)]
        assert envs.step([1] * 4)[0].tolist() == [[slot, 1] for slot in range(4)]


def test_the_callers_options_are_left_alone(envs: ClusterEnv) -> None:
    options = {"reset_mask": np.array([True] * 4), "level": 3}
    envs.reset(options=options)
    assert set(options) == {"reset_mask", "level"}
    assert envs.get_attr("last_options") == ({"level": 3},) * 4


def test_two_threads_at_once(tmp_path: pathlib.Path) -> None:
    gate = Gate(tmp_path)
    with batch([gate.env(slot) for slot in range(4)]) as envs:
        envs.reset(seed=1)
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(envs.step([1] * 4)))
        thread.start()
        gate.wait()
        uses: list[Callable[[], Any]] = [
            lambda: envs.step([1] * 4),
            lambda: envs.reset(),
            lambda: envs.call("double", 1.0),
            lambda: envs.send([1] * 4),
            lambda: envs.recv(),
        ]
        for use in uses:
            with pytest.raises(ConfigError, match="two threads at once"):
                use()
        gate.open()
        thread.join()
        assert results[0][0].tolist() == [[slot, 1] for slot in range(4)]
        assert envs.step([1] * 4)[0].tolist() == [[slot, 2] for slot in range(4)]


@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_calls_out_of_order(cluster: str) -> None:
    with batch(counting(4), cluster=cluster) as envs:
        envs.reset(seed=1)
        envs.step_async([1] * 4)
        uses: list[Callable[[], Any]] = [
            lambda: envs.step_async([1] * 4),
            lambda: envs.step([1] * 4),
            lambda: envs.reset(),
            lambda: envs.call("double", 1.0),
            lambda: envs.send([1] * 4),
        ]
        for use in uses:
            with pytest.raises(AlreadyPendingCallError, match="step"):
                use()
        assert envs.step_wait()[0].tolist() == [[slot, 1] for slot in range(4)]
        envs.send([1, 1], slots=[0, 2])
        with pytest.raises(ConfigError, match="slot 2 has an unfinished send"):
            envs.send([1], slots=[2])
        with pytest.raises(AlreadyPendingCallError, match="2 slots are in flight"):
            envs.step([1] * 4)
        for bad in (0, 3, -1, "1", 1.0, None, NAN):
            with pytest.raises(ConfigError, match="min_slots="):
                envs.recv(min_slots=bad)  # type: ignore[arg-type]
        for bad in (1, -1, 0, "2", 2.5):
            with pytest.raises(ConfigError, match="max_slots="):
                envs.recv(min_slots=2, max_slots=bad)  # type: ignore[arg-type]
        for bad in (-1, NAN, float("inf"), "1"):
            with pytest.raises(ConfigError, match="timeout="):
                envs.recv(timeout=bad)  # type: ignore[arg-type]
        observations = envs.recv(min_slots=2)[0]
        assert sorted(map(tuple, observations.tolist())) == [(0, 2), (2, 2)]


@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_closed_twice_and_used_after(cluster: str) -> None:
    envs = ClusterEnv(counting(2), cluster=cluster)
    envs.close()
    envs.close()
    with pytest.raises(ClosedEnvironmentError, match="after a call to `close"):
        envs.reset()


def test_private_names_work_as_gymnasium_has_them(envs: ClusterEnv) -> None:
    assert envs.call("_private") == ("private 0", "private 1", "private 2", "private 3")
    is_usable(envs)


def test_a_huge_result_arrives(envs: ClusterEnv) -> None:
    results = envs.call("huge")
    assert [(len(result), result[0]) for result in results] == [(2 * 2**20, slot) for slot in range(4)]
    is_usable(envs)


def test_a_result_that_cannot_travel() -> None:
    with batch(each(4, OddResults)) as envs:
        envs.reset(seed=1)
        envs.step([1] * 4)
        with pytest.raises(ResultError, match="lock"):
            envs.call("lock")
        with pytest.raises(ResultError, match="lock"):
            envs.call("double", threading.Lock())
        with pytest.raises(ResultError, match="lock"):
            envs.set_attr("x", [threading.Lock()] * 4)
        assert envs.call("double", 2.0) == (4.0,) * 4
        is_usable(envs)


def test_an_error_in_one_slot_does_not_shift_the_results_of_later_calls(envs: ClusterEnv) -> None:
    with pytest.raises(EnvError):
        envs.call("double", None)
    assert envs.call("double", 2.0) == (4.0,) * 4
    assert envs.get_attr("slot") == (0, 1, 2, 3)
    is_usable(envs)


@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_used_after_a_fork(cluster: str) -> None:
    with batch(counting(4), cluster=cluster) as envs:
        envs.reset(seed=1)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            said = "nothing"
            try:
                envs.step([1] * 4)
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writer, said.encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        said = os.read(reader, 10_000).decode()
        os.close(reader)
        assert said.startswith("ConfigError")
        assert str(os.getpid()) in said
        assert str(child) in said
        assert envs.step([1] * 4)[0].tolist() == [[slot, 1] for slot in range(4)]


def test_a_head_of_other_hosts_is_of_no_use_in_its_child() -> None:
    """Two processes at one socket would take each other's answers. Policies too are published by the parent only."""
    with clusterenv.make_vec(COUNTING, 2, cluster="tcp:nodes=1,workers=1") as envs:
        envs.reset(seed=1)
        uses: list[Callable[[], Any]] = [lambda: envs.step([1, 1]), lambda: envs.publish(None), lambda: envs.rollout(2)]
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            for use in uses:
                try:
                    use()
                except BaseException as error:
                    os.write(writer, f"{type(error).__name__}: {error}\n".encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        lines = os.read(reader, 10_000).decode().splitlines()
        os.close(reader)
        assert len(lines) == len(uses)
        assert all(line.startswith("ConfigError") and f"in its child {child}" in line for line in lines)
        assert envs.step([1, 1])[0].tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    "use",
    [pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy],
    ids=["pickle", "cloudpickle", "copy", "deepcopy"],
)
def test_pickled_or_copied(envs: ClusterEnv, use: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigTypeError, match="make_vec"):
        use(envs)
    is_usable(envs)
