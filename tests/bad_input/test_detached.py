"""Bad calls around a policy on workers: a named error, quickly, and the batch is as good as before."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded

import clusterenv
from clusterenv import ClusterEnv, ConfigError, ConfigTypeError, PolicyError
from clusterenv.errors import WeightsError
from clusterenv.policy.distributions import Categorical, DiagGaussian
from clusterenv.policy.runtime import NumpySpec
from tests.env.kit import SpaceEnv
from tests.env.policies import CHOICES, Echo, Failing, Gaussian, Linear, WideEnv, wide
from tests.faults.kit import Gate, batch
from tests.zoo import counting

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

    Use = Callable[[ClusterEnv], Any]

CLUSTERS = ["local:2", "inproc:2"]


@pytest.fixture(scope="module", params=CLUSTERS)
def shared(request: pytest.FixtureRequest) -> Iterator[ClusterEnv]:
    """One batch for all the tests of this module: what one breaks, the next finds."""
    envs = ClusterEnv(wide(4, 10**6), cluster=request.param)
    yield envs
    envs.close()


@pytest.fixture
def envs(shared: ClusterEnv) -> Iterator[ClusterEnv]:
    """The shared batch, with a policy that has played one step."""
    shared.reset(seed=1)
    shared.attach(Echo(), seed=1, encoding="fp32", sync="on-change")
    shared.rollout(1)
    yield shared
    shared.detach()


def is_usable(envs: ClusterEnv, steps: int = 1) -> None:
    """The next rollout begins with the second step, for every slot: nothing was stepped, reset or lost in between."""
    result = envs.rollout(2)
    assert result.obs.tolist() == [[[slot, steps + t] for slot in range(4)] for t in range(3)]
    assert not result.worker_lost.any()


class Locked(Linear):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Odd(Linear):
    """A policy with one thing changed."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.__dict__.update(changes)


class Own(Odd):
    """A policy with the methods of our own."""

    def __init__(self, **changes: Any) -> None:
        self.has_value, self.state = True, ()
        super().__init__(**changes)

    def build(self) -> Any:
        """What travels."""
        return NumpySpec.of(Linear(), WideEnv().observation_space)


class Halves(Categorical):
    """Samples what its `action` does not promise."""

    def sample(self, params: Any, noise: Any) -> Any:
        return super().sample(params, noise) + 0.5


class Pairs(Categorical):
    """Samples two actions for one."""

    def sample(self, params: Any, noise: Any) -> Any:
        actions = super().sample(params, noise)
        return np.stack([actions, actions], axis=1)


class Dull(Categorical):
    """Samples well, and cannot tell its mode."""

    def mode(self, params: Any) -> Any:
        raise NotImplementedError("no mode")


class OneStep(Categorical):
    """Tells the log-probabilities of one step, and sums up those of several."""

    def log_prob(self, params: Any, actions: Any) -> Any:
        return super().log_prob(params, actions).reshape(len(params), -1).sum(1)


class OnlyRows(Categorical):
    """Tells the log-probabilities of one step, and raises for several."""

    def log_prob(self, params: Any, actions: Any) -> Any:
        rows, _ = params.shape
        return super().log_prob(params, actions).reshape(rows)


BAD_ATTACHES: dict[str, tuple[Use, type[Exception], str]] = {
    "a class": (lambda envs: envs.attach(Linear), ConfigTypeError, "is not a policy"),
    "None": (lambda envs: envs.attach(None), ConfigTypeError, "NoneType is not a policy"),
    "a function": (lambda envs: envs.attach(lambda obs: 0), ConfigTypeError, "function is not a policy"),
    "deterministic": (lambda envs: envs.attach(Echo(), deterministic="no"), ConfigTypeError, "deterministic='no' must"),  # type: ignore[arg-type]
    "measure": (lambda envs: envs.attach(Echo(), measure=None), ConfigTypeError, "measure=None"),  # type: ignore[arg-type]
    "every_state": (lambda envs: envs.attach(Echo(), every_state=1), ConfigTypeError, "every_state=1"),  # type: ignore[arg-type]
    "seed -1": (lambda envs: envs.attach(Echo(), seed=-1), ConfigError, "seed=-1"),
    "seed 2.5": (lambda envs: envs.attach(Echo(), seed=2.5), ConfigError, "seed=2.5"),  # type: ignore[arg-type]
    "seed True": (lambda envs: envs.attach(Echo(), seed=True), ConfigError, "seed=True"),
    "seed a text": (lambda envs: envs.attach(Echo(), seed="1"), ConfigError, "seed='1'"),  # type: ignore[arg-type]
    "an epoch that no message holds": (
        lambda envs: envs.attach(Echo(), epoch=2**62 + 1),
        ConfigError,
        f"epoch={2**62 + 1} .* at most {2**62}",
    ),
    "state 5": (lambda envs: envs.attach(Odd(state=5)), ConfigError, "Odd.state is 5; it must be a tuple"),
    "a list": (lambda envs: envs.attach(Odd(weights=lambda: [1])), ConfigTypeError, r"Odd.weights\(\) gave a list"),
    "a list of a policy": (lambda envs: envs.attach(Own(weights=lambda: [1])), ConfigTypeError, "gave a list"),
    "other actions of a policy": (
        lambda envs: envs.attach(Own(distribution=Categorical(5))),
        ConfigError,
        "does not fit the action space",
    ),
    "state 5 of a policy": (lambda envs: envs.attach(Own(state=5)), ConfigError, "Own.state is 5"),
    "sync unknown": (lambda envs: envs.attach(Echo(), sync="apps"), ConfigError, "Did you mean 'aps'"),
    "sync a class": (lambda envs: envs.attach(Echo(), sync=clusterenv.APS), ConfigTypeError, "must be a text such as"),  # type: ignore[arg-type]
    "sync a number": (lambda envs: envs.attach(Echo(), sync=0.05), ConfigTypeError, "sync=0.05"),  # type: ignore[arg-type]
    "sync negative": (lambda envs: envs.attach(Echo(), sync="aps:-1"), ConfigError, "-1"),
    "sync NaN": (lambda envs: envs.attach(Echo(), sync="aps:nan"), ConfigError, "aps:nan"),
    "encoding": (lambda envs: envs.attach(Echo(), encoding="bf16delta"), ConfigError, "Did you mean 'bf16-delta'"),
    "runtime": (lambda envs: envs.attach(Echo(), runtime="onx"), ConfigError, "Did you mean 'onnx'"),
    "not finite": (lambda envs: envs.attach(Odd(slope=np.full(2, np.nan, np.float32))), WeightsError, "'slope'"),
    "objects": (lambda envs: envs.attach(Odd(slope=np.array([None, 1]))), ConfigError, "slope|forward"),
    "cannot travel": (lambda envs: envs.attach(Locked()), ConfigError, "cannot travel to a worker: TypeError"),
    "other actions": (lambda envs: envs.attach(Linear(2, 3)), ConfigError, "does not fit the action space"),
    "other observations": (lambda envs: envs.attach(Linear(7)), ConfigError, "Linear.forward.* raised"),
    "continuous": (lambda envs: envs.attach(Gaussian((2,))), ConfigError, "does not fit the action space"),
    "half actions": (
        lambda envs: envs.attach(Odd(distribution=Halves(CHOICES))),
        ConfigError,
        r"sample made two actions as an array of float64 \(2,\), but its `action` promises int64",
    ),
    "two actions for one": (
        lambda envs: envs.attach(Odd(distribution=Pairs(CHOICES))),
        ConfigError,
        r"int64 \(2, 2\), but its `action` promises int64 \(2,\)",
    ),
    "log-probabilities of one step only": (
        lambda envs: envs.attach(Odd(distribution=OneStep(CHOICES))),
        ConfigError,
        r"log_prob gave shape \(3,\) for params \(3, 2, .*, where \(3, 2\) is expected",
    ),
    "log-probabilities of rows only": (
        lambda envs: envs.attach(Odd(distribution=OnlyRows(CHOICES))),
        ConfigError,
        r"log_prob raised for params \(3, 2, .*: ValueError: too many values",
    ),
    "no mode": (lambda envs: envs.attach(Odd(distribution=Dull(CHOICES))), ConfigError, "NotImplementedError: no mode"),
}


@pytest.mark.parametrize("name", BAD_ATTACHES)
def test_what_cannot_be_attached(envs: ClusterEnv, name: str) -> None:
    use, kind, complaint = BAD_ATTACHES[name]
    with pytest.raises(kind, match=complaint):
        use(envs)
    is_usable(envs)


BAD_SIZES: dict[str, tuple[Use, str]] = {
    "rollout None": (lambda envs: envs.rollout(None), "steps=None"),  # type: ignore[arg-type]
    "rollout 0": (lambda envs: envs.rollout(0), "steps=0"),
    "rollout NaN": (lambda envs: envs.rollout(float("nan")), "steps=nan"),  # type: ignore[arg-type]
    "rollout an array": (lambda envs: envs.rollout(np.ones(1, int)), "steps="),  # type: ignore[arg-type]
    "rollout huge": (lambda envs: envs.rollout(10**10), "GiB of shared memory are needed .* Use fewer steps"),
    "rollout past 64 bits": (lambda envs: envs.rollout(10**30), "GiB of shared memory are needed"),
    "stream huge": (lambda envs: envs.stream(10**10), "GiB of shared memory are needed"),
    "stream many buffers": (lambda envs: envs.stream(10, buffers=10**12), "GiB of shared memory are needed"),
    "stream text": (lambda envs: envs.stream("8"), "steps='8'"),  # type: ignore[arg-type]
    "stream slots": (lambda envs: envs.stream(8, 5), "slots=5 must be between 1 and num_envs=4"),
    "stream slots True": (lambda envs: envs.stream(8, True), "slots=True"),
    "stream drop_oldest": (lambda envs: envs.stream(8, drop_oldest="no"), "drop_oldest='no'"),  # type: ignore[arg-type]
    "stream buffers": (lambda envs: envs.stream(8, buffers=0), "buffers=0"),
}


@pytest.mark.parametrize("name", BAD_SIZES)
def test_sizes(envs: ClusterEnv, name: str) -> None:
    use, complaint = BAD_SIZES[name]
    with pytest.raises(ConfigError, match=complaint):
        use(envs)
    gc.collect()  # what is left of a stream that did not begin
    is_usable(envs)


def test_sizes_may_be_integers_of_numpy(envs: ClusterEnv) -> None:
    is_usable(envs)
    assert envs.rollout(np.int64(3)).T == 3  # type: ignore[arg-type]
    with envs.stream(np.int32(2), np.int64(3), buffers=np.int64(2)) as stream:  # type: ignore[arg-type]
        assert next(stream).obs.shape == (3, 3, 2)


BAD_PUBLISHES: dict[str, tuple[Any, type[Exception], str]] = {
    "a text": ("policy", ConfigTypeError, "str is not a policy"),
    "a number": (5, ConfigTypeError, "int is not a policy"),
    "another kind": (Linear(), WeightsError, "'matrix' was not there when the policy was attached"),
}


@pytest.mark.parametrize("name", BAD_PUBLISHES)
def test_what_cannot_be_published(envs: ClusterEnv, name: str) -> None:
    policy, kind, complaint = BAD_PUBLISHES[name]
    with pytest.raises(kind, match=complaint):
        envs.publish(policy)
    assert envs.stats()["version"] == (0, 0)
    is_usable(envs)


def test_weights_whose_names_change(envs: ClusterEnv) -> None:
    class Renamed(Echo):
        more = False

        def weights(self) -> dict[str, Any]:
            return {**super().weights(), **({"more": np.zeros(1, np.float32)} if self.more else {})}

    policy = Renamed()
    envs.attach(policy, seed=1)
    policy.more = True
    with pytest.raises(WeightsError, match=r"'more' was not there .* detach\(\) and attach\(\)"):
        envs.publish()
    policy.more = False
    policy.number = 1
    assert envs.publish() == (0, 1)
    is_usable(envs)


ATTACHING: list[Use] = [lambda envs: envs.attach(Echo()), lambda envs: envs.detach()]
WITHOUT_A_POLICY: dict[str, Use] = {
    "rollout": lambda envs: envs.rollout(2),
    "stream": lambda envs: envs.stream(2),
    "publish": lambda envs: envs.publish(Echo()),
    "sync": lambda envs: envs.sync(),
    "stats": lambda envs: envs.stats(),
}


@pytest.mark.parametrize("name", WITHOUT_A_POLICY)
def test_nothing_goes_without_a_policy(envs: ClusterEnv, name: str) -> None:
    envs.detach()
    envs.detach()
    with pytest.raises(ConfigError, match=rf"no policy is attached. Call attach\(policy\) before {name}\(\)"):
        WITHOUT_A_POLICY[name](envs)
    envs.attach(Echo(), seed=1)
    is_usable(envs)


def test_while_a_stream_is_open(envs: ClusterEnv) -> None:
    uses: list[Use] = [
        lambda envs: envs.attach(Echo()),
        lambda envs: envs.detach(),
        lambda envs: envs.reset(),
        lambda envs: envs.stream(2),
        lambda envs: envs.recv(),
    ]
    with envs.stream(2) as stream:
        for use in uses[:-1]:
            with pytest.raises(AlreadyPendingCallError, match="Close the stream first"):
                use(envs)
        with pytest.raises(Exception, match="recv"):
            uses[-1](envs)
        assert next(stream).T == 2
        envs.publish()
        envs.sync()
        envs.stats()


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_before_the_first_reset_and_after_close(cluster: str) -> None:
    with batch(wide(2), cluster=cluster) as envs:
        envs.attach(Echo(), seed=1)
        for use in (lambda: envs.rollout(2), lambda: envs.stream(2)):
            with pytest.raises(ResetNeeded, match="never reset"):
                use()
        envs.publish()
        envs.reset(seed=1)
        assert envs.rollout(1).obs.shape == (2, 2, 2), "one step is a rollout too"
        stream = envs.stream(2)
        envs.close()
        envs.close()
        stream.close()
        assert list(stream) == []
        for after in (*WITHOUT_A_POLICY.values(), *ATTACHING):
            with pytest.raises(ClosedEnvironmentError):
                after(envs)


def test_two_threads_at_once(tmp_path: pathlib.Path) -> None:
    gate = Gate(tmp_path)
    with batch([gate.env(slot) for slot in range(4)]) as envs:
        envs.reset(seed=1)
        envs.attach(Linear(2, 3), seed=1)
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(envs.rollout(2)))
        thread.start()
        gate.wait()
        for use in (*WITHOUT_A_POLICY.values(), *ATTACHING):
            with pytest.raises(ConfigError, match="two threads at once"):
                use(envs)
        gate.open()
        thread.join()
        assert results[0].T == 2


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_used_after_a_fork(cluster: str) -> None:
    with batch(wide(4), cluster=cluster) as envs:
        envs.reset(seed=1)
        envs.attach(Echo(), seed=1)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            for use in WITHOUT_A_POLICY.values():
                try:
                    use(envs)
                except BaseException as error:
                    said.append(f"{type(error).__name__}: {error}")
            os.write(writer, "\n".join(said).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        lines = os.read(reader, 10_000).decode().splitlines()
        os.close(reader)
        assert len(lines) == len(WITHOUT_A_POLICY)
        assert all(line.startswith("ConfigError") and f"child {child}" in line for line in lines)
        assert envs.rollout(2).T == 2


# Environments.


def test_vectorised_blocks_take_no_policy() -> None:
    envs = ClusterEnv.from_blocks(CartPoleVectorEnv, 4, cluster="inproc:2")
    with envs, pytest.raises(ConfigError, match="vectorised blocks"):
        envs.attach(Linear(4, 2))


def test_observations_without_a_fixed_size() -> None:
    envs = ClusterEnv([lambda: SpaceEnv(spaces.Text(5), spaces.Discrete(CHOICES))], cluster="inproc")
    with envs, pytest.raises(ConfigError, match="observations of fixed size"):
        envs.attach(Echo())


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_more_workers_than_slots_and_observations_of_float64(cluster: str) -> None:
    where = cluster.replace("2", "8")
    space = spaces.Box(-1e300, 1e300, (2,), np.float64)
    with ClusterEnv([lambda: SpaceEnv(space, spaces.Discrete(CHOICES))], cluster=where) as envs:
        envs.reset(seed=1)
        envs.attach(Echo(), seed=1)
        result = envs.rollout(7)
        assert (result.obs.shape, result.obs.dtype) == ((8, 1, 2), np.float64)
        assert np.abs(result.obs).max() > 1e30, "not cut to float32"
        with envs.stream(1) as stream:
            assert next(stream).N == 1
        envs.publish()


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_empty_observations_and_a_policy_without_weights(cluster: str) -> None:
    class Blind(Echo):
        def weights(self) -> dict[str, Any]:
            return {}

        def forward(self, weights: Any, obs: Any, state: Any) -> Any:
            return np.zeros((len(obs), CHOICES), np.float32), None, state

    space = spaces.Box(-1, 1, (0,), np.float32)
    with ClusterEnv([lambda: SpaceEnv(space, spaces.Discrete(CHOICES))] * 2, cluster=cluster) as envs:
        envs.reset(seed=1)
        envs.attach(Blind(), seed=1)
        assert envs.rollout(3).obs.shape == (4, 2, 0)
        envs.publish()
        assert envs.rollout(3).version.tolist() == [[0, 0]] * 3, "there is nothing to move"


# Policies that misbehave where they run.


def broken() -> Any:
    return pytest.raises(PolicyError, match="ZeroDivisionError: the policy is broken")


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("sync", ["on-change", "aps:0.001"])
def test_a_policy_that_raises(cluster: str, sync: str) -> None:
    policy = Failing()
    good = policy.slope
    with batch(wide(4, 10**6), cluster=cluster) as envs:
        envs.reset(seed=1)
        envs.attach(policy, seed=1, sync=sync, encoding="fp32")
        envs.rollout(2)
        policy.slope = good + np.float32(1000.0)
        published = contextlib.nullcontext() if sync == "on-change" else broken()
        with published:
            envs.publish()
        if sync == "on-change":
            with broken():
                envs.rollout(2)
        policy.slope = good
        envs.publish()
        envs.sync()
        assert envs.rollout(2).T == 2


class Overflows(Gaussian):
    """Gives NaN, from weights that are finite, when they are large."""

    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        params, value, state = super().forward(weights, obs, state)
        return (params * np.nan if weights["gain"][0] > 1e3 else params), value, state


class Picky(SpaceEnv):
    """Does not take an action that is not a number, as physics engines do."""

    def step(self, action: Any) -> Any:
        if np.isnan(action).any():
            raise ValueError("NaN in the action")
        return super().step(action)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("on_loss", ["restart", "raise"])
def test_what_is_not_a_number_is_the_policys_fault_and_not_the_environments(cluster: str, on_loss: str) -> None:
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    policy = Overflows((2,))
    with batch([lambda: Picky(box, box)] * 4, cluster=cluster, on_loss=on_loss) as envs:
        envs.reset(seed=1)
        envs.attach(policy, seed=1, sync="on-change")
        envs.rollout(3)
        policy.gain = np.float32(1e6)
        envs.publish()
        with pytest.raises(PolicyError, match="Overflows gave NaN as params in slot 0, step 0"):
            envs.rollout(3)
        policy.gain = np.float32(0.1)
        envs.publish()
        envs.reset(seed=1)
        assert not np.isnan(envs.rollout(3).params).any()


def test_what_is_not_a_number_is_found_on_the_head_before_it_moves() -> None:
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    policy = Overflows((2,))
    with batch([lambda: Picky(box, box)] * 4) as envs:
        envs.reset(seed=1)
        envs.attach(policy, seed=1, sync="aps:0.01")
        envs.rollout(3)
        policy.gain = np.float32(1e6)
        with pytest.raises(PolicyError, match=r"Overflows gives NaN for observations of the workers, in version 0\.1"):
            envs.publish()
        assert envs.stats()["syncs"] == 1
        assert envs.rollout(3).version.max() == 0, "the last good version acts on"


def test_a_policy_that_cannot_be_opened_on_a_worker() -> None:
    class Homesick(Linear):
        head = os.getpid()

        def __setstate__(self, state: dict[str, Any]) -> None:
            self.__dict__ = state
            if os.getpid() != self.head:
                raise OSError("no such file here")

    with batch(counting(4, length=10**6)) as envs:
        envs.reset(seed=1)
        envs.attach(Homesick(2, 3), seed=1)
        for use in (lambda: envs.rollout(2), lambda: envs.stream(2)):
            with pytest.raises(PolicyError, match=r"could not be set up on worker 0:(.|\n)*OSError: no such file here"):
                use()
        envs.step([1] * 4)
        envs.attach(Linear(2, 3), seed=1)
        assert envs.rollout(2).obs[0, :, 1].tolist() == [1] * 4


def test_a_distribution_that_fits_takes_its_place() -> None:
    # The other way round: nothing that is right is refused.
    box = spaces.Box(-1.0, 1.0, (3,), np.float32)
    with batch([lambda: SpaceEnv(box, box)] * 2, cluster="inproc") as envs:
        envs.reset(seed=1)
        policy = Gaussian((3,))
        assert isinstance(policy.distribution, DiagGaussian)
        envs.attach(policy, seed=1, deterministic=True)
        assert envs.rollout(2).action.shape == (2, 2, 3)
