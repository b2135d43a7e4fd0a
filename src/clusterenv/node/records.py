"""What head and nodes tell each other beside rows: how our own classes become plain data, and come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from clusterenv.errors import ProtocolError, ResultError
from clusterenv.transport.fragments import FragmentSpec
from clusterenv.wire.arrays import parts_of, shown
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
    from clusterenv.node.base import Message

# Of a number in the sizes of fragments; how much memory all of them take together is seen later.
_MAX_SIZE = 2**31

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
            return CODEC.pack(Reply(packable(reply.value, CODEC.pack, name), request=reply.request))
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
    return check_reply(CODEC.unpack(data), slots, name, results)


def check_reply(reply: Any, slots: range, name: str, results: int | None = None) -> Reply:
    """The same for a reply that came as a part of something else."""
    if not isinstance(reply, Reply) or type(reply.request) is not int or type(reply.error) not in (str, type(None)):
        raise ProtocolError(f"a {type(reply).__name__} came in place of a reply to {name!r}.")
    value = reply.value
    if reply.failure is not None:
        _check_failures([reply.failure], range(-1, slots.stop))
    failed = reply.failure is not None or reply.error is not None
    if name in _ANSWERS and not isinstance(value, type(None) if failed else _ANSWERS[name]):
        raise ProtocolError(f"{name!r} was answered with a {type(value).__name__}.")
    if isinstance(value, Report):
        _check_report(value, slots)
    elif isinstance(value, Fragment):
        _check_fragment(value, slots)
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


def _check_fragment(fragment: Fragment, slots: range) -> None:
    _check_failures(fragment.failures, slots)
    whole, times = (fragment.buffer, fragment.steps), (fragment.env_s, fragment.policy_s, fragment.idle_s)
    if any(type(each) is not int for each in whole) or any(type(each) is not float for each in times):
        raise ProtocolError("a fragment came with other fields than a fragment has.")
    if fragment.steps < 0:
        raise ProtocolError(f"a fragment of {fragment.steps} steps came.")


def _check_failures(failures: Any, slots: range) -> None:
    if type(failures) is not list or not all(isinstance(each, Failure) for each in failures):
        raise ProtocolError("something came in place of a failure.")
    for slot, doing, error, text, _, at in failures:
        good = type(slot) is int and type(doing) is str and type(text) is str and isinstance(error, Exception)
        if type(at) is not int or not 0 <= at <= _MAX_SIZE:
            raise ProtocolError(f"a failure came at step {shown(at)} of a fragment.")
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


def attachment_from_data(data: Any) -> Attachment:
    """Undo `attachment_to_data`; ProtocolError if that did not write this."""
    fields = _fields(data, ("runtime", "distribution", "state", "weights", "seed", "name", "deterministic"))
    runtime, distribution, state, weights, seed, name, deterministic = fields
    return Attachment(
        runtime_from_data(runtime),
        distribution_from_data(distribution),
        leaves_from_data(state),
        weights_from_data(weights),
        _exactly(int, seed, "seed"),
        _exactly(str, name, "name"),
        deterministic=_exactly(bool, deterministic, "deterministic"),
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
        "every_state": spec.every_state,
    }


def fragment_spec_from_data(data: Any, slots: range, workers: int) -> FragmentSpec:
    """The sizes of fragments on a node with these slots; ProtocolError if something else came."""
    fields = _fields(data, ("buffers", "steps", "observation", "state", "action", "params", "has_value", "every_state"))
    buffers, steps, observation, state, action, params, has_value, every_state = fields
    return FragmentSpec(
        _size(buffers, "buffers", 1),
        _size(steps, "steps", 1),
        len(slots),
        workers,
        leaves_from_data(observation),
        leaves_from_data(state),
        leaves_from_data(parts_of(action, 1, "an action"))[0],
        _size(params, "params", 0),
        _exactly(bool, has_value, "has_value"),
        slots.start,
        every_state=_exactly(bool, every_state, "every_state"),
    )


def _fields(data: Any, names: tuple[str, ...]) -> list[Any]:
    if type(data) is not dict or data.keys() != set(names):
        raise ProtocolError(f"something came in place of a dictionary with {', '.join(names)}.")
    return [data[name] for name in names]


def _exactly(kind: type, value: Any, what: str) -> Any:
    if type(value) is not kind:
        raise ProtocolError(f"{what} is {shown(value)}; it must be a {kind.__name__}.")
    return value


def _size(value: Any, what: str, least: int) -> int:
    if type(value) is not int or not least <= value <= _MAX_SIZE:
        raise ProtocolError(f"{what} is {shown(value)}; it must be a whole number from {least} to {_MAX_SIZE}.")
    return value
