"""Files and services that keep the numbers."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.errors import ConfigError
from clusterenv.metrics.sinks import csv as csv_sink
from clusterenv.metrics.sinks.csv import CsvSink
from clusterenv.metrics.sinks.tensorboard import TensorBoardSink
from clusterenv.metrics.sinks.wandb import WandbSink

if TYPE_CHECKING:
    import pathlib


def test_a_row_per_number(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    sink.write({"charts/SPS": 2671.94321, "sync/count": 2.0}, 4096, 1.5324)
    # Before it is closed: a reader beside the run sees it.
    assert path.read_text() == (
        "seconds,global_step,key,value\n1.532,4096,charts/SPS,2671.94321\n1.532,4096,sync/count,2\n"
    )
    sink.close()


def test_new_metrics_need_no_new_column(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.csv"
    for number, name in enumerate(["charts/SPS", "sync/count"]):
        sink = CsvSink(path)
        sink.write({name: float(number)}, number, float(number))
        sink.close()
    assert list(csv_sink.read(path)) == [(0.0, 0, "charts/SPS", 0.0), (1.0, 1, "sync/count", 1.0)]


def test_a_run_that_goes_on_drops_what_it_will_write_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    for step in (100, 200, 300):
        sink.write({"charts/SPS": 1.5}, step, float(step))
    sink.close()
    again = CsvSink(path, resume_at=200)
    again.write({"charts/SPS": 2.5}, 250, 250.0)
    again.close()
    assert [row[1] for row in csv_sink.read(path)] == [100, 200, 250]
    assert [row[3] for row in csv_sink.read(path)] == [1.5, 1.5, 2.5]


def test_a_row_cut_off_by_a_crash_is_left_out(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("seconds,global_step,key,value\n1.000,10,charts/SPS,5\n2.000,20,charts/S")
    assert len(list(csv_sink.read(path))) == 1
    sink = CsvSink(path)
    sink.write({"charts/SPS": 6.0}, 30, 3.0)
    sink.close()
    assert [row[1] for row in csv_sink.read(path)] == [10, 30]


def test_numbers_survive_the_text(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.csv"
    values = {"losses/value_loss": 1.23456789e-7, "sync/bytes": 123456789.0, "losses/entropy": float("nan")}
    sink = CsvSink(path)
    sink.write(values, 1, 1.0)
    sink.close()
    read = {key: value for _, _, key, value in csv_sink.read(path)}
    assert read == pytest.approx(values, nan_ok=True)


def test_another_file_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("time,reward\n1,2\n")
    with pytest.raises(ConfigError, match="it is no metrics file"):
        CsvSink(path)
    assert path.read_text() == "time,reward\n1,2\n"


@pytest.mark.parametrize(
    "row", ["", "1,2,x", "1,2,x,3,4", "a,2,x,3", "1,2.5,x,3", "1,2,x,y", "\0", '1,2,"x,3', f"1,{'9' * 5000},x,3"]
)
def test_a_row_that_is_none_is_refused_with_its_line(tmp_path: pathlib.Path, row: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(f"seconds,global_step,key,value\n1,1,x,1\n{row}\n")
    with pytest.raises(ConfigError, match=r"metrics\.csv, line 3: .* is no row of seconds"):
        list(csv_sink.read(path))
    with pytest.raises(ConfigError):
        CsvSink(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"seconds,global_step,key,value\n\xff\xfe,1,x,1\n")
    with pytest.raises(ConfigError, match="line 2"):
        list(csv_sink.read(path))


def test_tensorboard_gets_scalars_and_the_configuration(tmp_path: pathlib.Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    sink = TensorBoardSink(tmp_path, {"learning_rate": 0.001})
    sink.write({"charts/SPS": 10.0}, 100, 1.0)
    sink.write({"charts/SPS": 20.0}, 200, 3.0)
    sink.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    scalars = events.Scalars("charts/SPS")
    assert [(scalar.step, scalar.value) for scalar in scalars] == [(100, 10.0), (200, 20.0)]
    assert scalars[1].wall_time - scalars[0].wall_time == pytest.approx(2.0, abs=1e-3)
    text = events.Tensors("hyperparameters/text_summary")[0].tensor_proto.string_val[0]
    assert b"|learning_rate|0.001|" in text


def test_a_missing_tensorboard_is_answered_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r'pip install "clusterenv\[train\]"'):
        TensorBoardSink(tmp_path)


def test_a_missing_wandb_is_answered_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r'pip install "clusterenv\[wandb\]"'):
        WandbSink("clusterenv", "a run")


def test_wandb_gets_values_against_steps_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []

    class Run:
        def define_metric(self, name: str, step_metric: str) -> None:
            log.append((name, step_metric))

        def log(self, values: dict[str, float]) -> None:
            log.append(values)

        def finish(self) -> None:
            log.append("finished")

    def init(**settings: Any) -> Run:
        log.append(settings)
        return Run()

    module = types.ModuleType("wandb")
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    sink = WandbSink("a project", "a run", {"seed": 1})
    sink.write({"charts/SPS": 5.0}, 64, 2.0)
    sink.close()
    assert log == [
        {"project": "a project", "name": "a run", "config": {"seed": 1}, "dir": None},
        ("*", "global_step"),
        {"charts/SPS": 5.0, "global_step": 64, "seconds": 2.0},
        "finished",
    ]
