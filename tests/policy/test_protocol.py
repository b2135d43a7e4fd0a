"""The protocols: objects that keep them are known by it, and the module stays light."""

from __future__ import annotations

import subprocess
import sys

from clusterenv.policy.distributions import Categorical
from clusterenv.policy.protocol import Distribution, Output, Policy


class Keeps:
    def __init__(self) -> None:
        self.distribution = Categorical(2)
        self.state: tuple[object, ...] = ()
        self.has_value = False

    def weights(self) -> dict[str, object]:
        return {}

    def build(self) -> object:
        return None


class Breaks(Keeps):
    build = property()  # asking for it raises AttributeError: as good as not there


def test_a_policy_is_known_by_what_it_has() -> None:
    assert isinstance(Keeps(), Policy)
    assert not isinstance(Breaks(), Policy)
    assert not isinstance(Categorical(2), Policy)
    assert isinstance(Categorical(2), Distribution)
    assert not isinstance(Keeps(), Distribution)


def test_an_output_has_names() -> None:
    assert Output._fields == ("params", "value", "state")


def test_policies_need_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import clusterenv.policy.distributions, clusterenv.policy.protocol, clusterenv.policy.streams\n"
        "print('onnxruntime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
