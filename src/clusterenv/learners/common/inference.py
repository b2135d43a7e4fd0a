"""Central inference, as in SEED RL: workers have environments only, the policy acts on the learner's device.

A thread of its own takes what the environments show as it comes (`ClusterEnv.recv`), runs the policy on it in batches,
and sends the actions back by slot (`send`), while the learner learns. A batch is run when it is full, or when its first
row has waited long enough: so a slow or lost worker holds nobody back. With a batch of half the slots, the workers step
one half while the policy acts for the other.

What was played becomes the same batches that a stream gives (`gathering`). Whole ones wait in a queue of a few; while
it is full nothing is inferred, so the workers wait too, and data cannot grow older than that.

Only this thread calls the environments while it runs. Weights come by `publish`, see `acting`.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clusterenv import spaces
from clusterenv.env.batch import Piece, assemble
from clusterenv.env.tally import Tally
from clusterenv.envs import EPISODE_CONTINUES
from clusterenv.errors import ConfigError, PolicyError
from clusterenv.learners.common.acting import Handover, HeadActor
from clusterenv.learners.common.gathering import Answers, Gathering
from clusterenv.learners.common.graphed import fastest
from clusterenv.learners.common.meter import Meter
from clusterenv.learners.common.seeds import playing_seed
from clusterenv.policy.base import at_slots, check_slots, why_nan
from clusterenv.policy.streams import Streams
from clusterenv.transport.fragments import FragmentSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from clusterenv.env.batch import Batch
    from clusterenv.env.vector import ClusterEnv
    from clusterenv.learners.common.config import LearnerConfig
    from clusterenv.learners.common.gathering import Unrolls
    from clusterenv.policy.protocol import Distribution

# How long a wait of either thread lasts before it looks whether the other has ended.
_LOOK_S = 0.1
# The thread notices the end between two batches; a forward pass of a large network may take this long.
_END_S = 30.0
# How many groups of slots are remembered, where slots explore differently.
_GROUPS = 1024

_logger = logging.getLogger(__name__)


class Inference:
    """Batches of a policy that acts here. Close it when they are no longer wanted.

    Args:
        envs: just reset, with nothing under way. Nobody else may use them until `close`.
        observations: what they showed then.
        module: the policy, with its first weights.
        config: the settings.
        epoch: of the versions.
        every_state: whether batches shall hold the recurrent state before every step.
    """

    def __init__(
        self,
        envs: ClusterEnv,
        observations: Any,
        module: nn.Module,
        config: LearnerConfig,
        *,
        epoch: int = 0,
        every_state: bool = False,
    ) -> None:
        leaves = spaces.leaves_of(envs.single_observation_space)
        if leaves is None:
            raise ConfigError(
                f"inference='head' needs observations of fixed size, but the space is {envs.single_observation_space}. "
                "Use a wrapper that turns observations into arrays."
            )
        self._envs, self._space, self._epoch = envs, envs.single_observation_space, epoch
        self._slots = config.batch_slots
        self._size, self._wait_s = config.inference_rows, config.inference_wait_ms / 1000
        steps = config.rollout_steps
        keep = steps if every_state else 1
        self._actor = HeadActor(module, self._space, slots=envs.num_envs, device=config.device, keep=keep)
        self._run = fastest(self._actor, self._size, config.cuda_graphs)
        self._handover, self._version = Handover(module), 0
        self._distribution = self._actor.distribution
        check_slots(self._distribution, envs.num_envs)
        self._of_slots: dict[bytes, Distribution] = {}
        spec = FragmentSpec(
            1,
            steps,
            envs.num_envs,
            1,
            tuple(leaves),
            self._actor.state,
            self._distribution.action,
            self._distribution.size,
            self._actor.has_value,
            every_state=every_state,
        )
        self._most = max(1, config.stream_buffers - 1)
        # For unrolls that wait until they are a batch, those in the queue, those being copied, and what is whole now.
        spare = self._size + (self._most + 2) * self._slots
        self._gathering = Gathering(spec, self._actor.states, spare=spare)
        self._streams = Streams(playing_seed(config.seed, epoch), range(envs.num_envs))
        self._noise = np.zeros((steps, envs.num_envs, self._distribution.draws), np.float32)
        self._nothing = self._distribution.to_env(np.zeros((envs.num_envs, *spec.action.shape), spec.action.dtype))
        self._whole: deque[Unrolls] = deque()
        self._queue: deque[list[Unrolls]] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: BaseException | None = None
        self.tally, self._meter = Tally(), Meter(self._size)
        self._threads = config.torch_threads
        self._thread = threading.Thread(target=self._main, args=(observations,), name="inference", daemon=True)
        self._thread.start()

    # What the learner's thread calls.

    @property
    def ready(self) -> bool:
        """Whether `next` would not wait: a batch is there, or an error."""
        return bool(self._queue) or self._error is not None

    def next(self) -> Batch:
        """The next batch; waits for it.

        Raises:
            BaseException: what the thread met, with its traceback.
        """
        with self.tally.time("wait"), self._changed:
            while not self._queue and self._error is None and self._thread.is_alive():
                self._changed.wait(_LOOK_S)
            if self._error is not None:
                raise self._error
            if not self._queue:
                raise ConfigError("the inference has been closed, so there are no more batches.")
            unrolls = self._queue.popleft()
            self._changed.notify_all()
        batch = self._batch(unrolls)
        self.tally.batch(batch)
        return batch

    def _batch(self, unrolls: list[Unrolls]) -> Batch:
        columns, final, slots, afresh = self._gathering.gather(unrolls)
        batch = assemble(
            [Piece(0, columns, slots)],
            columns,
            self._space,
            epoch=self._epoch,
            newest=self._handover.number,
            divergence=np.zeros(1),
            final=final,
        )
        batch.worker_lost = afresh
        return batch

    def publish(self, module: nn.Module) -> None:
        """These are the newest weights. They act from the next inference batch on."""
        self._handover.publish(module)
        self.tally.publishes += 1

    def stats(self) -> dict[str, Any]:
        """What was counted, as `ClusterEnv.stats` tells it, and the inference batches since the last call."""
        told = self.tally.summary()
        # What workers do with their time they tell with fragments, of which there are none.
        told["time_s"] = {name: told["time_s"][name] for name in ("wait", "encode", "estimate")}
        return {
            **told,
            "version": (self._epoch, self._handover.number),
            "held": (self._epoch, self._version),
            "threshold": None,
            "workers_ready": self._envs.workers_ready,
            "restarts": self._envs.restarts,
            "network_bytes": self._envs.network_bytes,
            "inference": self._meter.take()._asdict(),
        }

    def close(self) -> None:
        """End the thread. What is under way in the environments stays so; their `close` or `reset` ends it."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(_END_S)
        if self._thread.is_alive():
            _logger.warning("the inference thread has not ended within %.0f s; it ends with the process", _END_S)

    # What the thread does.

    def _main(self, observations: Any) -> None:
        torch.set_num_threads(self._threads)  # each thread begins with as many as there are cores
        try:
            with self._device():
                self._loop(spaces.take_apart(self._space, observations))
        except BaseException as error:  # whatever it is: the learner has to know, or it would wait for ever
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _device(self) -> Any:
        """On a GPU, a queue of our own: what we ask for does not stand behind what the learner has asked for."""
        if self._actor.device.type != "cuda":
            return contextlib.nullcontext()
        stream = torch.cuda.Stream(self._actor.device, priority=-1)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._actor.device))
        return torch.cuda.stream(stream)

    def _loop(self, observations: list[Any]) -> None:
        """The hot loop: per batch one `recv`, one `send`, one forward pass, and two dozen calls of NumPy."""
        envs, gathering = self._envs, self._gathering
        asked = gathering.begin(observations)
        # Every n-th slot: each worker has some of its block in each batch, so it steps while we infer.
        groups = -(-len(asked.act) // self._size)
        for group in range(groups):
            some = slice(group, None, groups)
            self._act(asked.act[some], [leaf[some] for leaf in asked.obs], asked.first[some], asked.at[some])
        while not self._ended:
            try:
                answers = envs.recv(1, _LOOK_S, max_slots=self._size, linger=self._wait_s)
            except multiprocessing.TimeoutError:
                continue
            began = time.perf_counter()
            asked = gathering.answered(self._answers(*answers))
            if len(asked.reset):
                envs.send(self._nothing[: len(asked.reset)], asked.reset)
            if len(asked.act):
                self._act(asked.act, asked.obs, asked.first, asked.at)
                self._meter.add(len(asked.act), time.perf_counter() - began)
            self._hand_over(gathering.take())

    def _answers(self, obs: Any, reward: Any, terminated: Any, truncated: Any, infos: dict[str, Any]) -> Answers:
        leaves = spaces.take_apart(self._space, obs)
        slots = infos["env_id"]
        if len(infos) == 1:
            return Answers(slots, leaves, reward, terminated, truncated)
        failed = infos.get("_env_error")
        lost = infos.get("worker_lost")
        if lost is not None and failed is not None:  # an environment that raised took no other with it
            lost = lost & ~failed
        continues = infos.get(EPISODE_CONTINUES)
        return Answers(slots, leaves, reward, terminated, truncated, lost, failed, continues)

    def _act(self, slots: Any, obs: Sequence[Any], first: Any, at: Any) -> None:
        """Run the policy for these slots, and send their actions."""
        distribution = self._distribution_of(slots)
        if not at.all():
            new = slots[at == 0]
            self._noise[:, new] = self._streams.draw(
                len(self._noise), distribution.draws, distribution.noise, new.tolist()
            )
        if self._handover.number != self._version:
            self._version = self._handover.take(self._actor.module)
        params, value = self._run(slots, obs, first=first, at=at)
        if np.isnan(params).any():
            row = int(np.isnan(params).any(1).argmax())
            raise PolicyError(
                f"{type(self._actor.module).__name__} gave NaN as params in slot {slots[row]}, with version "
                f"{self._version}. {why_nan(leaf[row] for leaf in obs)}"
            )
        actions = distribution.sample(params, self._noise[at, slots])
        self._envs.send(distribution.to_env(actions), slots)
        logp = distribution.log_prob(params, actions)  # while the environments step
        self._gathering.acted(slots, actions, logp, params, value, version=self._version)

    def _distribution_of(self, slots: Any) -> Distribution:
        """That of these rows, where slots explore differently; the same slots come together again and again."""
        if getattr(self._distribution, "slots", None) is None:
            return self._distribution
        key = slots.tobytes()
        if key not in self._of_slots:
            if len(self._of_slots) >= _GROUPS:
                self._of_slots.clear()
            self._of_slots[key] = at_slots(self._distribution, slots.tolist())
        return self._of_slots[key]

    def _hand_over(self, whole: list[Unrolls]) -> None:
        """Whole unrolls, as many as make a batch, go into the queue; while it is full, everybody waits."""
        self._whole.extend(whole)
        while sum(len(each.slots) for each in self._whole) >= self._slots:
            batch: list[Unrolls] = []
            missing = self._slots
            while missing:
                some = self._whole.popleft()
                if len(some.slots) > missing:
                    some, rest = some.split(missing)
                    self._whole.appendleft(rest)
                batch.append(some)
                missing -= len(some.slots)
            with self._changed:
                while len(self._queue) >= self._most and not self._ended:
                    self._changed.wait(_LOOK_S)
                self._queue.append(batch)
                self._changed.notify_all()
