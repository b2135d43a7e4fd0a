"""The benchmarks of faults, for a moment: they hurt, check and save, and a run that fails is a finding."""

from __future__ import annotations

import faulthandler
import json
from typing import TYPE_CHECKING, Any

import zmq

from benchmarks import chaos, recovery, soak
from clusterenv.node.joining import Joining
from clusterenv.testing import History, nodes_of, workers_of

if TYPE_CHECKING:
    import pathlib

    import pytest

# With this seed the first worker of a soak is killed after three seconds.
SOON = 31


def test_a_sound_cluster_is_found_sound(tmp_path: pathlib.Path) -> None:
    args = chaos.Args(clusters=["local:2"], num_envs=4, seconds=6.0, seeds=1, first_seed=7, out=tmp_path)
    assert chaos.main(args) == 0
    found = json.loads((tmp_path / "chaos.json").read_text())
    assert found["settings"]["seconds"] == 6.0
    (run,) = found["runs"]
    assert (run["seed"], run["violations"]) == (7, 0)
    assert run["rows"]["step"] > 0
    assert run["deeds"]["kill worker"] > 0, "nobody was hurt"
    assert run["rows"]["lost"] + run["rows"]["fresh"] > 0, "nobody was missed"
    assert not list(tmp_path.glob("*.npy"))


def test_steps_that_come_twice_are_found(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = History.step

    def twice(history: History, actions: Any, result: Any) -> None:
        step(history, actions, result)
        step(history, actions, result)

    monkeypatch.setattr(History, "step", twice)
    monkeypatch.setattr(chaos, "in_child", chaos.run)  # here, where histories are tampered with
    monkeypatch.setattr(chaos, "workers_of", list)  # of batches that other tests share
    monkeypatch.setattr(chaos, "nodes_of", list)
    common: dict[str, Any] = {"modes": ["step"], "num_envs": 2, "seconds": 0.3, "seeds": 1, "calm": True}
    try:
        assert chaos.main(chaos.Args(clusters=["local:1"], first_seed=7, out=tmp_path, **common)) == 1
    finally:
        faulthandler.cancel_dump_traceback_later()  # it would end the tests
    (run,) = json.loads((tmp_path / "chaos.json").read_text())["runs"]
    assert run["violations"] > 0
    assert {each["kind"] for each in run["first_violations"]} <= {"double step", "repeated", "gap"}
    assert [path.name for path in tmp_path.glob("*.npy")] == ["chaos-local-7.npy"]


def test_a_run_that_fails_is_a_finding(tmp_path: pathlib.Path) -> None:
    assert chaos.main(chaos.Args(clusters=["local:0"], seconds=1.0, seeds=1, first_seed=7, out=tmp_path)) == 1
    (run,) = json.loads((tmp_path / "chaos.json").read_text())["runs"]
    assert run["violations"] == 1
    (violation,) = run["first_violations"]
    assert violation["kind"] == "crash or hang"
    assert "ConfigError" in violation["text"]


def test_a_killed_worker_is_missed_and_comes_back(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    window, others = recovery.window, set(workers_of())  # of batches that other tests share
    monkeypatch.setattr(recovery, "workers_of", lambda: sorted(set(workers_of()) - others))
    # The speed of a machine that others use as well says nothing: it may never be again what it was.
    monkeypatch.setattr(recovery, "window", lambda envs, actions: (1.0, window(envs, actions)[1]))
    recovery.main(recovery.Args(kills=1, silences=0, before_s=0.25, num_envs=4, out=tmp_path))
    (kill,) = json.loads((tmp_path / "recovery.json").read_text())["found"]
    assert 0 < kill["told_s"] < kill["back_s"]


def test_a_silent_node_is_missed_no_sooner_than_it_may_be(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = set(nodes_of())  # of batches that other tests share
    monkeypatch.setattr(recovery, "nodes_of", lambda: sorted(set(nodes_of()) - others))
    recovery.main(recovery.Args(kills=0, silences=1, silence_s=4.0, before_s=0.25, num_envs=4, out=tmp_path))
    (silent_s,) = json.loads((tmp_path / "recovery.json").read_text())["silent_s"]
    assert silent_s > 4.0 - 4.0 / Joining.beats, "it had said nothing for so long when it was stopped, at most"


def test_a_soak_samples_and_checks_every_piece(tmp_path: pathlib.Path) -> None:
    args = soak.Args(clusters=["local:2"], num_envs=4, minutes=0.2, piece_s=0.5, seed=SOON, out=tmp_path)
    assert soak.main(args) == 0
    head = json.loads((tmp_path / "soak.json").read_text())["heads"]["local:2"]
    assert head["violations"] == []
    assert head["rows"]["step"] > 0
    assert head["end"]["deeds"]["kill worker"] > 0, "nobody was hurt"
    assert head["summary"]["samples"] >= 3
    assert all(sample["memory_mb"] > 1 and sample["descriptors"] > 1 for sample in head["samples"])


def test_a_soak_tells_memory_in_use_from_memory_that_was_freed() -> None:
    before = soak.held()
    kept = [b"1" * 100_000 for _ in range(200)]
    now = soak.held()
    assert now["in_use_mb"] - before["in_use_mb"] >= 19.9, "20 MB are in use"
    assert before["own_mb"] < now["own_mb"] < now["memory_mb"]
    kept.clear()
    assert soak.held()["in_use_mb"] - before["in_use_mb"] < 1.0
    small = [object() for _ in range(10_000)]
    assert soak.held()["objects"] - before["objects"] >= len(small)


def test_rows_of_other_slots_are_found_in_a_soak(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = History.load

    def mixed_up(path: pathlib.Path) -> History:
        history = load(path)
        history.table["slot"] ^= 1
        return history

    monkeypatch.setattr(History, "load", mixed_up)
    assert soak.main(soak.Args(clusters=["local:1"], num_envs=2, minutes=0.01, piece_s=0.3, out=tmp_path)) == 1
    violations = json.loads((tmp_path / "soak.json").read_text())["heads"]["local:1"]["violations"]
    assert {each["kind"] for each in violations} == {"other slot"}
    assert list(tmp_path.glob("soak-local-*.npy"))


def test_threads_of_libraries_count_too() -> None:
    before = soak.held()["threads"]
    with zmq.Context() as context, context.socket(zmq.PAIR):
        assert soak.held()["threads"] > before


def test_a_head_that_fails_in_a_soak_is_a_finding(tmp_path: pathlib.Path) -> None:
    assert soak.main(soak.Args(clusters=["local:0"], minutes=0.01, out=tmp_path)) == 1
    (violation,) = json.loads((tmp_path / "soak.json").read_text())["heads"]["local:0"]["violations"]
    assert violation["kind"] == "crash or hang"
    assert "ConfigError" in violation["text"]


def test_what_grows_is_told_with_how_far_that_may_be_off() -> None:
    hours = [number / 60 for number in range(60)]
    steepness, off = soak.slope(hours, [100 + 5 * hour + (-1) ** number for number, hour in enumerate(hours)])
    assert abs(steepness - 5) < off < 2
