"""What head and nodes tell each other beside rows: how our own classes become plain data, and come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from clusterenv.errors import ProtocolError, ResultError
from clusterenv.transport.fragments import FragmentSpec
from clusterenv.wire.plain import Codec
from clusterenv.wire.policies import (
    distribution_from_data,
    distribution_to_data,
    leaves_from_data,
    leaves_to_data,
    runtime_from_data,
    runtime_to_data,
    weights_from_data,
    weights_to_data,
)
from clusterenv.worker.actor import Attachment, Fragment
from clusterenv.worker.describe import BlockDescription
from clusterenv.worker.loop import Reply
from clusterenv.worker.report import Failure, Report, packable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterenv.node.base import Message

CODEC = Codec([AutoresetMode, BlockDescription, Failure, Fragment, Reply, Report])


def pack_report(report: Report) -> bytes:
    """A report as bytes; what cannot travel becomes a failure that says so. Nothing for an empty one."""
    if not report:
        return b""
    try:
        return CODEC.pack(report)
    except ResultError:
        return CODEC.pack(packable(report, CODEC.pack))


def pack_reply(reply: Reply, name: str) -> bytes:
    """A reply as bytes; a value that cannot travel becomes an error that says so."""
    try:
        return CODEC.pack(reply)
    except ResultError as error:
        if isinstance(reply.value, Report):
            return CODEC.pack(Reply(packable(reply.value, CODEC.pack), request=reply.request))
        return CODEC.pack(Reply(error=f"the result of {name!r} {error}", request=reply.request))


def pack_message(message: Message) -> bytes:
    """A message for a worker as bytes. Raises ResultError if an argument cannot travel."""
    try:
        return CODEC.pack((message.name, message.arguments))
    except ResultError as error:
        raise ResultError(f"an argument {error}") from error


def unpack_report(data: bytes, slots: range) -> Report:
    """A report about these slots; ProtocolError if it is none."""
    report = CODEC.unpack(data)
    if not isinstance(report, Report):
        raise ProtocolError(f"a {type(report).__name__} came in place of a report.")
    _check_report(report, slots)
    return report


def unpack_reply(data: bytes, slots: range, name: str, results: int | None = None) -> Reply:
    """The reply to this message by the worker of these slots; ProtocolError if it is none.

    `results` is how many a call must have, one for every row that was asked.
    """
    reply = CODEC.unpack(data)
    if not isinstance(reply, Reply) or type(reply.request) is not int or type(reply.error) not in (str, type(None)):
        raise ProtocolError(f"a {type(reply).__name__} came in place of a reply to {name!r}.")
    value = reply.value
    if reply.failure is not None:
        _check_failures([reply.failure], range(-1, slots.stop))
    elif reply.error is None and name in _ANSWERS and not isinstance(value, _ANSWERS[name]):
        raise ProtocolError(f"{name!r} was answered with a {type(value).__name__}.")
    if isinstance(value, Report):
        _check_report(value, slots)
    elif isinstance(value, Fragment):
        _check_failures(value.failures, slots)
        if any(type(each) is not int for each in (value.buffer, value.steps)) or value.steps < 0:
            raise ProtocolError(f"a fragment came in buffer {value.buffer!r} with {value.steps!r} steps.")
    elif results is not None and value is not None and len(value) != results:
        raise ProtocolError(f"{len(value)} results came of {results} slots.")
    return reply


_ANSWERS: dict[str, type | tuple[type, ...]] = {
    "reset": Report,
    "play": Fragment,
    "call": (list, tuple, type(None)),
}


def _check_report(report: Report, slots: range) -> None:
    lists = (report.infos, report.observations, report.failures, report.block_infos)
    if any(type(each) is not list for each in lists) or report.block_infos:
        raise ProtocolError("a report came with other fields than a report has.")
    for slot, info in (_pair(each) for each in report.infos):
        if slot not in slots or type(info) is not dict:
            raise ProtocolError(f"an info came for slot {slot!r} from a node that has {slots}.")
    for slot, _ in (_pair(each) for each in report.observations):
        if slot not in slots:
            raise ProtocolError(f"an observation came for slot {slot!r} from a node that has {slots}.")
    _check_failures(report.failures, slots)


def _check_failures(failures: Any, slots: range) -> None:
    if type(failures) is not list or not all(isinstance(each, Failure) for each in failures):
        raise ProtocolError("something came in place of a failure.")
    for slot, doing, error, text, _ in failures:
        good = type(slot) is int and type(doing) is str and type(text) is str and isinstance(error, Exception)
        if not good or slot not in slots:
            raise ProtocolError(f"a failure of slot {slot!r} came from a node that has {slots}.")


def _pair(value: Any) -> tuple[Any, Any]:
    if type(value) not in (tuple, list) or len(value) != 2 or type(value[0]) is not int:
        raise ProtocolError("a report came with other entries than (slot, value).")
    return value[0], value[1]


def describe_plainly(description: BlockDescription) -> BlockDescription:
    """A description whose metadata can travel; what cannot is left out, since nothing of ours needs it."""
    metadata: dict[str, Any] = {}
    for key, value in description.metadata.items():
        try:
            CODEC.pack(value)
        except ResultError:
            continue
        metadata[key] = value
    return BlockDescription(
        description.slots,
        description.observation_space,
        description.action_space,
        metadata,
        description.render_mode,
        description.others,
    )


def attachment_to_data(attachment: Attachment) -> dict[str, Any]:
    """A policy without its weights. Raises ConfigError if it cannot travel to another host."""
    return {
        "runtime": runtime_to_data(attachment.runtime),
        "distribution": distribution_to_data(attachment.distribution),
        "state": leaves_to_data(attachment.state),
        "weights": weights_to_data(attachment.weights),
        "seed": attachment.seed,
        "name": attachment.name,
        "deterministic": attachment.deterministic,
    }


def attachment_from_data(data: Mapping[str, Any]) -> Attachment:
    """Undo `attachment_to_data`."""
    return Attachment(
        runtime_from_data(data["runtime"]),
        distribution_from_data(data["distribution"]),
        leaves_from_data(data["state"]),
        weights_from_data(data["weights"]),
        int(data["seed"]),
        str(data["name"]),
        deterministic=bool(data["deterministic"]),
    )


def fragment_spec_to_data(spec: FragmentSpec) -> dict[str, Any]:
    """The sizes of fragments, without those of the batch: a node has its own number of slots."""
    return {
        "buffers": spec.buffers,
        "steps": spec.steps,
        "observation": leaves_to_data(spec.observation),
        "state": leaves_to_data(spec.state),
        "action": leaves_to_data((spec.action,)),
        "params": spec.params,
        "has_value": spec.has_value,
    }


def fragment_spec_from_data(data: Mapping[str, Any], slots: range, workers: int) -> FragmentSpec:
    """The sizes of fragments on a node with these slots."""
    return FragmentSpec(
        int(data["buffers"]),
        int(data["steps"]),
        len(slots),
        workers,
        leaves_from_data(data["observation"]),
        leaves_from_data(data["state"]),
        leaves_from_data(data["action"])[0],
        int(data["params"]),
        bool(data["has_value"]),
        slots.start,
    )
