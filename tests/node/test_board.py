"""The head's view of the control words: who is asked, who has answered, where a worker stands."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from clusterenv.node.board import Board
from clusterenv.transport.arena import Arena, ArenaSpec, Command, Word

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = [0, 1, 2]


@contextmanager
def made() -> Iterator[tuple[Arena, Board]]:
    arena = Arena.create(ArenaSpec(3, len(WORKERS), (), ()))
    board = Board(arena, spare_core=False)
    for worker in WORKERS:
        board.welcome(worker)
    try:
        yield arena, board
    finally:
        arena.close()


def words(arena: Arena, word: Word) -> list[int]:
    return [arena.words[arena.word(worker, word)] for worker in WORKERS]


def answer(arena: Arena, *workers: int) -> None:
    for worker in workers:
        arena.words[arena.word(worker, Word.DONE)] = arena.words[arena.word(worker, Word.GO)]


def test_asking_everybody_changes_every_request_number() -> None:
    with made() as (arena, board):
        board.ask(WORKERS, Command.STEP)
        assert words(arena, Word.GO) == [1, 1, 1]
        assert words(arena, Word.COMMAND) == [Command.STEP] * 3


@pytest.mark.parametrize("some", [[1], [0, 2], [2, 0], []])
def test_asking_some_leaves_the_others_alone(some: list[int]) -> None:
    with made() as (arena, board):
        board.ask(some, Command.SEND)
        assert words(arena, Word.GO) == [int(worker in some) for worker in WORKERS]
        assert words(arena, Word.COMMAND) == [Command.SEND * (worker in some) for worker in WORKERS]


def test_only_who_sleeps_over_a_request_is_woken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with made() as (arena, board):
        board.ask([0, 1], Command.STEP)
        woken: list[int] = []
        monkeypatch.setattr("clusterenv.transport.wake.wake", woken.append)
        for worker in (1, 2):
            arena.words[arena.word(worker, Word.SLEEPS)] = 1
        for worker in WORKERS:
            board.wake_again(worker)
        assert woken == [arena.words_address + 4 * arena.word(1, Word.GO)]


def test_who_has_not_answered_is_named_until_he_has() -> None:
    with made() as (arena, board):
        assert board.unanswered(WORKERS) is None
        board.ask(WORKERS, Command.STEP)
        answer(arena, 0, 2)
        assert board.unanswered(WORKERS) == 1
        assert board.unanswered([0, 2]) is None
        answer(arena, 1)
        assert board.unanswered(WORKERS) is None


def test_nobody_waits_for_a_lost_worker_until_another_is_in_its_place() -> None:
    with made() as (arena, board):
        board.ask(WORKERS, Command.STEP)
        answer(arena, 0, 2)
        board.excuse(1)
        assert board.unanswered(WORKERS) is None
        board.welcome(1)
        assert board.unanswered(WORKERS) is None, "what the lost one was asked is not asked of the fresh one"
        board.ask([1], Command.STEP)
        assert board.unanswered(WORKERS) == 1


def test_a_lost_worker_does_not_seem_to_be_at_work() -> None:
    with made() as (arena, board):
        board.ask(WORKERS, Command.STEP)
        answer(arena, 0, 2)
        board.excuse(1)
        assert words(arena, Word.DONE) == words(arena, Word.GO), "or none of the others would be the last to answer"
        board.ask(WORKERS, Command.STEP)
        assert words(arena, Word.DONE) == [1, 2, 1]
        board.welcome(1)
        board.ask(WORKERS, Command.STEP)
        assert words(arena, Word.DONE) == [1, 2, 1]
        assert words(arena, Word.GO) == [3, 3, 3]


def test_an_answer_to_an_older_request_is_none() -> None:
    with made() as (arena, board):
        board.ask([0], Command.STEP)
        answer(arena, 0)
        board.ask([0], Command.STEP)
        assert board.unanswered(WORKERS) == 0


def test_messages_are_announced_until_they_are_read() -> None:
    with made() as (arena, board):
        assert board.announced() == []
        arena.words[arena.word(1, Word.FRAMES)] += 2
        assert board.announced() == [1]
        board.note_read(1)
        assert board.unread(1)
        board.note_read(1)
        assert not board.unread(1)
        assert board.announced() == []


def test_messages_of_a_lost_worker_are_not_waited_for() -> None:
    with made() as (arena, board):
        arena.words[arena.word(1, Word.FRAMES)] += 1
        board.excuse(1)
        assert board.announced() == []
        board.welcome(1)
        assert board.announced() == [], "what the lost one announced will not come"


@pytest.mark.parametrize(
    ("slot", "writing", "position"),
    [
        (-1, -1, (None, None)),
        (5, -1, (5, None)),
        (5, 4, (5, None)),
        (5, 5, (5, range(5, 6))),
        (5, 7, (5, range(5, 8))),
        (-1, 5, (None, None)),
    ],
    ids=["idle", "stepping", "stepping after a row", "writing", "writing a whole block", "idle after a row"],
)
def test_where_a_worker_stands(slot: int, writing: int, position: tuple[int | None, range | None]) -> None:
    with made() as (arena, board):
        arena.words[arena.word(2, Word.SLOT)] = slot
        arena.words[arena.word(2, Word.WRITING)] = writing
        assert board.position(2) == position
        assert board.position(1) == (None, None)
