"""Lock step with a detached policy: every slot plays T steps, then the head has the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.env.batch import assemble, copied
from clusterenv.node.base import Message

if TYPE_CHECKING:
    from clusterenv.env.batch import Batch, Piece
    from clusterenv.env.detached import Detached

_BUFFER = 0


def rollout(detached: Detached, steps: int, *, copy: bool) -> Batch:
    """Play `steps` steps in every slot. A worker lost on the way is replaced, and plays its fragment from the start."""
    players, tally = detached.players, detached.tally
    players.prepare(detached.fragment_spec(steps, buffers=1))
    players.begin()
    detached.before_lock_step()
    with tally.time("wait"):
        pieces = _play(detached)
    detached.engine.gather.count_steps(steps)
    everything = players.fragments.columns(_BUFFER, range(players.fragments.spec.num_envs))
    batch = assemble(
        pieces,
        copied(everything) if copy else everything,
        detached.observation_space,
        epoch=detached.newest.epoch,
        newest=detached.newest.number,
        divergence=detached.divergence,
    )
    detached.handed_over(batch)
    return batch


def _play(detached: Detached) -> list[Piece]:
    players, node = detached.players, detached.engine.node
    pieces: dict[int, Piece] = {}
    todo = players.everybody
    try:
        while todo:
            if players.equip():
                detached.catch_up()
            node.post({worker: Message("play", (_BUFFER, False, players.begins_afresh(worker))) for worker in todo})
            replies = players.wait(todo)
            for worker, reply in replies.items():
                pieces[worker], fragment = players.piece(worker, reply)
                detached.arrived(pieces[worker], fragment)
            players.replace_lost()
            todo = [worker for worker in todo if worker not in pieces]
    except BaseException:
        players.stop()
        raise
    return [pieces[worker] for worker in players.everybody]
