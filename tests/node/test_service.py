"""A node's side of requests, with workers whose answers come when the test says so."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from clusterenv import make_vec
from clusterenv.node.base import Loss
from clusterenv.node.records import CODEC
from clusterenv.node.service import Service
from clusterenv.wire import messages as m
from clusterenv.worker.loop import Reply
from tests.faults.kit import LIMIT_S, lost, patient
from tests.node.worlds import TOLD

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping, Sequence


class OneWorker:
    """A node of one worker, which replies what `reply` says, once."""

    blocks = (range(1),)

    def __init__(self) -> None:
        self.lost = False
        self.reply: Reply | None = None
        self._losses: list[Loss] = []

    def alive(self, worker: int) -> bool:
        return not self.lost

    def post(self, messages: Mapping[int, Any]) -> None:
        self.reply = None

    def tell(self, worker: int, order: Any) -> None:
        """It has heard."""

    def replies(self, workers: Sequence[int], limit_s: float) -> dict[int, Reply]:
        reply, self.reply = self.reply, None
        return {} if reply is None else dict.fromkeys(workers, reply)

    def lose(self, worker: int, cause: str) -> None:
        self.lost = True
        self._losses.append(Loss(worker, cause, None, None))

    def losses(self) -> list[Loss]:
        losses, self._losses = self._losses, []
        return losses

    def replace(self, worker: int, seeds: Sequence[int | None]) -> None:
        self.lost = False

    def built(self, workers: Sequence[int]) -> dict[int, Reply | None]:
        return dict.fromkeys(workers)

    def pids(self) -> list[int]:
        return [1]

    def played(self, limit_s: float) -> list[Any]:
        return []

    def look(self) -> None:
        """Nobody dies here."""


class NoSteps:
    """Nothing is stepped here."""

    busy = False

    def forget(self, worker: int) -> None:
        """There is nothing."""

    def lose(self, worker: int) -> None:
        """There is nothing."""

    def show_again(self) -> None:
        """There is nothing."""


def serving() -> tuple[Service, OneWorker, list[list[Any]]]:
    sent: list[list[Any]] = []
    service = Service(sent.append, ())
    node = OneWorker()
    service._node, service._steps, service._lives = node, NoSteps(), [0]  # type: ignore[assignment]
    return service, node, sent


def test_the_answer_of_a_replacement_is_not_that_of_the_worker_before_it() -> None:
    """The head has given a worker up that hangs in a call, and its word for that was lost with the connection."""
    service, node, sent = serving()
    call = CODEC.pack(("set_attr", ([0], "x", [1])))
    service.handle(m.Post(number=1, settled=0, worker=0, message=call), [])
    service.handle(m.Replace(number=2, settled=0, worker=0, seeds=[None], limit_s=5.0), [])
    service.handle(m.Post(number=3, settled=0, worker=0, message=call), [])
    node.reply = Reply("answer to 3")
    service.progress()
    answers = [m.decode_from_node(frames) for frames in sent]
    told = {each.number: each.value for each in answers if isinstance(each, m.Answer)}
    assert list(told) == [1, 2, 3]
    assert not told[1]
    assert told[3]
    assert service.idle


def test_a_loss_is_told_again_after_a_broken_connection_until_the_worker_is_replaced() -> None:
    service, node, sent = serving()
    node.lose(0, "it was killed")
    service.progress()
    service.send_again()
    told = [m.decode_from_node(frames) for frames in sent]
    assert [each.cause for each in told if isinstance(each, m.Lost)] == ["it was killed"] * 2
    service.handle(m.Replace(number=1, settled=0, worker=0, seeds=[None], limit_s=5.0), [])
    sent.clear()
    service.send_again()
    assert not any(isinstance(m.decode_from_node(frames), m.Lost) for frames in sent)


def test_answers_are_sent_again_after_a_broken_connection_until_they_are_settled() -> None:
    service, _, sent = serving()
    service.handle(m.Tell(number=1, settled=0, worker=0, order=None), [])
    service.send_again()
    assert sent == [sent[0]] * 2
    service.handle(m.Tell(number=2, settled=1, worker=0, order=None), [])
    sent.clear()
    service.send_again()
    assert [numbered(frames) for frames in sent] == [2]


def numbered(frames: list[Any]) -> int:
    message = m.decode_from_node(frames)
    assert isinstance(message, m.Answer)
    return message.number


def test_orders_of_a_worker_that_is_lost_get_an_answer() -> None:
    """The head would send them again and again, to a worker that never heard of them."""
    service, node, sent = serving()
    for number in (1, 2):
        service.handle(m.Tell(number=number, settled=0, worker=0, order=(0, True, False)), [])
    assert not service.idle
    node.lose(0, "it was killed")
    service.progress()
    *answers, loss = sent
    assert [numbered(frames) for frames in answers] == [1, 2]
    assert isinstance(m.decode_from_node(loss), m.Lost)
    assert service.idle


def test_others_are_heard_while_a_replacement_is_built(tmp_path: pathlib.Path) -> None:
    slots: list[dict[str, Any]] = [{"slot": 0}, {"slot": 1, "plan": {2: "exit"}}]
    cluster, limits = "tcp:nodes=1,workers=2", {"timeouts": patient()}
    with contextlib.closing(
        make_vec(TOLD, 2, cluster=cluster, folder=str(tmp_path), slot_kwargs=slots, vector_kwargs=limits)
    ) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        envs.send([0, 0])
        *_, infos = envs.recv(1, LIMIT_S)
        assert infos["env_id"].tolist() == [1]
        assert lost(infos, 1) == [True]
        (tmp_path / "stepped").touch()
        observations, *_, infos = envs.recv(1, LIMIT_S)
        assert infos["env_id"].tolist() == [0]
        assert observations.tolist() == [[0, 2]]
        (tmp_path / "built").touch()
        envs.send([0, 0])
        assert envs.recv(2, LIMIT_S)[0].tolist() == [[0, 3], [1, 0]]
