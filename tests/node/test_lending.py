"""Memory that nodes have counterparts of: what comes back must fit it."""

from __future__ import annotations

import types
from typing import Any

import pytest

from clusterenv.errors import ProtocolError
from clusterenv.node.lending import Lending
from clusterenv.worker.actor import Fragment


@pytest.mark.parametrize("steps", [17, 10**30])
def test_a_fragment_of_more_steps_than_it_has_room_for_is_refused(steps: int) -> None:
    lending = Lending()
    arena: Any = None
    made: Any = types.SimpleNamespace(spec=types.SimpleNamespace(buffers=1, steps=16))
    lending.fragments = made
    with pytest.raises(ProtocolError, match=r"a fragment of \d+ steps came; there is room for 16"):
        lending.take_fragment(arena, range(2), Fragment(0, steps), [])
