"""What head and nodes tell each other beside rows: it comes back as it was, and what cannot travel is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clusterenv.errors import ProtocolError
from clusterenv.node.records import (
    CODEC,
    attachment_from_data,
    attachment_to_data,
    describe_plainly,
    fragment_spec_from_data,
    fragment_spec_to_data,
    pack_reply,
    pack_report,
    unpack_reply,
    unpack_report,
)
from clusterenv.policy.distributions import Categorical
from clusterenv.policy.graph import GraphSpec
from clusterenv.spaces import Leaf
from clusterenv.sync.weights import TensorSpec, WeightSpec
from clusterenv.transport.fragments import FragmentSpec
from clusterenv.worker.actor import Attachment, Fragment
from clusterenv.worker.describe import BlockDescription
from clusterenv.worker.loop import Reply
from clusterenv.worker.report import Failure, Report
from tests.node.puppets import ACTION, OBSERVATION

SLOTS = range(4, 8)


def failure(slot: int = 4) -> Failure:
    return Failure(slot, "step", ValueError("no"), "Traceback ...", recovered=False)


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


def test_a_report_comes_back() -> None:
    report = Report([(4, {"a": 1}), (7, {"b": np.arange(3)}), (4, {})], [failure()], [(5, "text")])
    assert same(unpack_report(pack_report(report), SLOTS), report)


def test_an_empty_report_is_no_bytes() -> None:
    assert pack_report(Report()) == b""


@pytest.mark.parametrize("at", [-1, 2**40, "first", None])
def test_a_failure_at_an_impossible_step_is_refused(at: Any) -> None:
    report = Report(failures=[failure()._replace(at=at)])
    with pytest.raises(ProtocolError, match="a failure came at step"):
        unpack_report(pack_report(report), SLOTS)


def test_what_cannot_travel_in_a_report_is_a_failure() -> None:
    came = unpack_report(pack_report(Report(infos=[(4, {"a": 1}), (5, {"bad": object()})])), SLOTS)
    assert came.infos[0] == (4, {"a": 1})
    assert [each.slot for each in came.failures] == [5]
    assert "info key 'bad' cannot travel to another host: object" in str(came.failures[0].error)


def test_an_info_of_a_reset_that_cannot_travel_is_a_failure_of_the_reset() -> None:
    came = unpack_reply(pack_reply(Reply(Report(infos=[(4, {"bad": object()})])), "reset"), SLOTS, "reset")
    assert [each.doing for each in came.value.failures] == ["reset"]


@pytest.mark.parametrize(
    ("reply", "name"),
    [
        (Reply([1, "a", None, 2.5], request=3), "call"),
        (Reply(None, request=3), "set_attr"),
        (Reply(Report(infos=[(4, {"a": 1})])), "reset"),
        (Reply(Fragment(1, 5, [failure()], 0.5, 0.25, 0.125)), "play"),
        (Reply(failure=failure()), "reset"),
        (Reply(error="it went wrong"), "play"),
    ],
)
def test_a_reply_comes_back(reply: Reply, name: str) -> None:
    assert same(unpack_reply(pack_reply(reply, name), SLOTS, name), reply)


def test_a_result_that_cannot_travel_is_an_error_that_says_so() -> None:
    came = unpack_reply(pack_reply(Reply([1, object()], request=9), "get_secret"), SLOTS, "call")
    assert came.request == 9
    assert came.value is None
    assert "the result of 'get_secret'" in str(came.error)


BAD_REPLIES: dict[str, tuple[Any, str]] = {
    "no reply": (Report(), "call"),
    "a number for a reset": (Reply(5), "reset"),
    "nothing for a reset": (Reply(), "reset"),
    "a report for a fragment": (Reply(Report()), "play"),
    "a fragment in no buffer": (Reply(Fragment("0")), "play"),  # type: ignore[arg-type]
    "a fragment of fewer than no steps": (Reply(Fragment(0, -1)), "play"),
    "a fragment with other failures": (Reply(Fragment(0, 1, [1])), "play"),  # type: ignore[list-item]
    "a fragment of another node": (Reply(Fragment(0, 1, [failure(0)])), "play"),
    "a report of another node": (Reply(Report(infos=[(0, {})])), "reset"),
    "a failure of another node": (Reply(failure=failure(9)), "reset"),
    "a value beside an error": (Reply(5, error="no"), "call"),
    "a value beside a failure": (Reply(5, failure=failure()), "call"),
    "a number for a failure": (Reply(failure=5), "lend"),  # type: ignore[arg-type]
    "a number for an error": (Reply(error=5), "lend"),  # type: ignore[arg-type]
    "a fragment with text for a time": (Reply(Fragment(0, 1, [], "1")), "play"),  # type: ignore[arg-type]
    "a fragment with text for its idle time": (Reply(Fragment(0, 1, idle_s="1")), "play"),  # type: ignore[arg-type]
    "a flag for a slot": (Reply(Report(infos=[(True, {})])), "reset"),
}


@pytest.mark.parametrize(("reply", "name"), BAD_REPLIES.values(), ids=BAD_REPLIES.keys())
def test_a_reply_that_does_not_fit_is_refused(reply: Any, name: str) -> None:
    with pytest.raises(ProtocolError):
        unpack_reply(CODEC.pack(reply), SLOTS, name, 4)


def test_metadata_that_cannot_travel_is_left_out() -> None:
    description = BlockDescription(SLOTS, OBSERVATION, ACTION, {"fps": 30, "bad": object()}, "human", ())
    came = CODEC.unpack(CODEC.pack(describe_plainly(description)))
    assert came.metadata == {"fps": 30}
    assert (came.slots, came.render_mode, came.observation_space) == (SLOTS, "human", OBSERVATION)
    assert description.metadata.keys() == {"fps", "bad"}


LEAF = Leaf((4,), np.dtype("<f4"))
WEIGHTS = WeightSpec((TensorSpec("w", (2, 3), "<f4"),))
ATTACHED = attachment_to_data(
    Attachment(
        GraphSpec(b"graph", ("w",), (LEAF,), (), 2, True), Categorical(2), (), WEIGHTS, 7, "A", deterministic=True
    )
)
SIZES = fragment_spec_to_data(FragmentSpec(2, 16, 4, 1, (LEAF,), (LEAF,), LEAF, 2, True, every_state=True))


def test_a_policy_and_the_sizes_of_its_fragments_come_back() -> None:
    assert attachment_to_data(attachment_from_data(CODEC.unpack(CODEC.pack(ATTACHED)))) == ATTACHED
    assert fragment_spec_to_data(fragment_spec_from_data(CODEC.unpack(CODEC.pack(SIZES)), SLOTS, 1)) == SIZES


@pytest.mark.parametrize("field", ["runtime", "distribution", "state", "weights", "seed", "name", "deterministic"])
@pytest.mark.parametrize("value", [None, float("inf"), {}, b"x"], ids=repr)
def test_a_policy_with_another_field_is_refused(field: str, value: Any) -> None:
    for data in ({**ATTACHED, field: value}, {name: ATTACHED[name] for name in ATTACHED if name != field}, value):
        with pytest.raises(ProtocolError):
            attachment_from_data(data)


@pytest.mark.parametrize(
    "field", ["buffers", "steps", "observation", "state", "action", "params", "has_value", "every_state"]
)
@pytest.mark.parametrize("value", [None, -1, 2**4000, 1.5, "8", [[]]], ids=lambda value: str(value)[:5])
def test_sizes_that_are_none_are_refused(field: str, value: Any) -> None:
    for data in ({**SIZES, field: value}, {name: SIZES[name] for name in SIZES if name != field}, value):
        with pytest.raises(ProtocolError):
            fragment_spec_from_data(data, SLOTS, 1)
