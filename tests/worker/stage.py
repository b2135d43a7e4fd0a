"""A station with a policy that plays: weights and fragments lie in memory of its own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from clusterenv.policy.adapters import as_policy
from clusterenv.spaces import leaves_of
from clusterenv.sync.versions import Version
from clusterenv.sync.weights import WeightSpec
from clusterenv.transport.fragments import Columns, Fragments, FragmentSpec
from clusterenv.transport.shared import SharedArrays
from clusterenv.transport.weights import WeightBuffer, weights_layout
from clusterenv.worker.actor import Attachment
from clusterenv.worker.station import Station
from tests.env.policies import CHOICES
from tests.worker.kit import Bound, ScriptedEnv, bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterenv.worker.actor import Fragment


class WideScripted(ScriptedEnv):
    """With as many actions as the policies of the tests have."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.action_space = spaces.Discrete(CHOICES)


class Stage:
    """Plays fragments of `steps` steps."""

    def __init__(self, block: Bound, policy: Any, steps: int, *, every_state: bool = False, **more: Any) -> None:
        self.bound, self.policy, self._every_state = block, policy, every_state
        description = block.block.describe()
        self.made = as_policy(policy, description.observation_space, description.action_space)
        self.spec = WeightSpec.of(self.made.weights())
        self.station = Station(block.block, block.arena, 0)
        self._number, self._more = -1, more
        self.attach(steps)

    def attach(self, steps: int) -> None:
        """Give the policy to the station, with memory for its weights and its fragments."""
        self.weights = WeightBuffer(SharedArrays.create(weights_layout(self.spec)))
        self.publish()
        made, name = self.made, type(self.policy).__name__
        attachment = Attachment(made.build(), made.distribution, made.state, self.spec, 5, name, **self._more)
        self.station.attach(attachment, self.weights.memory)
        self.share(steps)

    def publish(self) -> None:
        """The weights that the policy has now become the next version."""
        self._number += 1
        self.weights.put(Version(0, self._number), self.spec.flatten(self.made.weights()))

    def share(self, steps: int) -> None:
        """Other memory for fragments."""
        distribution, slots = self.made.distribution, len(self.bound.block.slots)
        leaves = tuple(leaves_of(self.bound.block.observation_space) or ())
        sizes = (leaves, self.made.state, distribution.action, distribution.size, self.made.has_value)
        spec = FragmentSpec(2, steps, slots, 1, *sizes, every_state=self._every_state)
        memory = SharedArrays.create(spec.layout())
        self.fragments = Fragments(spec, memory)
        self.station.share(spec, memory)

    def play(self, buffer: int = 0, *, switch: bool = False, afresh: bool = False) -> tuple[Fragment, Columns]:
        """Play one fragment; views of what it left in memory."""
        fragment = self.station.play(buffer, switch, afresh)
        return fragment, self.fragments.columns(buffer, range(self.fragments.spec.num_envs))

    def steps(self, *rows: int) -> None:
        """Somebody else steps these rows once, or all."""
        chosen = list(rows or range(len(self.bound.block.slots)))
        self.station.note_step(chosen)
        self.bound.step(chosen)

    def reset(self, *rows: int) -> None:
        """Somebody else resets these rows."""
        self.station.reset(rows, [None] * len(rows), None)


@contextmanager
def stage(
    policy: Any,
    on_step: Callable[[ScriptedEnv], Any] | None = None,
    *,
    steps: int = 4,
    count: int = 2,
    mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    rebuild: bool = True,
    **more: Any,
) -> Iterator[Stage]:
    """A station of `count` environments that were reset, with a policy."""
    with bound(lambda: WideScripted(on_step), mode, count=count, rebuild=rebuild) as block:
        made = Stage(block, policy, steps, **more)
        made.reset(*range(count))
        try:
            yield made
        finally:
            made.station.detach()
