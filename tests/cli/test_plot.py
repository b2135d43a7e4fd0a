"""`clusterenv plot`: what belongs together, means and intervals, and a picture."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clusterenv.cli import curves
from clusterenv.cli.curves import Curve
from clusterenv.cli.main import main
from clusterenv.errors import ConfigError
from clusterenv.learners.common.runfolder import RunFolder
from clusterenv.metrics.sinks.csv import CsvSink

if TYPE_CHECKING:
    import pathlib


def curve(x: Any, y: Any, **settings: Any) -> Curve:
    return Curve({"algorithm": "ppo", **settings}, np.array(x, float), np.array(y, float))


def make_run(root: pathlib.Path, seed: int, rule: str = "aps", value: float = 1.0) -> str:
    folder = RunFolder.create(root, env_id="E-v0", algorithm="ppo", seed=seed, now=datetime.datetime(2025, 1, seed))
    folder.write("ppo", {"env_id": "E-v0", "seed": seed, "sync": {"rule": rule}})
    sink = CsvSink(folder.metrics_file)
    for step in range(0, 1001, 100):
        sink.write({"charts/episodic_return": value * step, "charts/SPS": 1.0}, step, step / 10)
    sink.close()
    return str(folder.path)


def test_seeds_of_one_experiment_are_taken_together() -> None:
    groups = curves.grouped(
        [
            curve([0, 1], [0, 1], env_id="E", seed=1, **{"sync.rule": "aps"}),
            curve([0, 1], [0, 1], env_id="E", seed=2, **{"sync.rule": "aps"}),
            curve([0, 1], [0, 1], env_id="E", seed=1, **{"sync.rule": "every", "sync.every": 4}),
        ]
    )
    assert {label: len(group) for label, group in groups.items()} == {
        "sync.rule=aps": 2,
        "sync.every=4, sync.rule=every": 1,
    }


def test_what_a_loss_means_makes_no_other_experiment() -> None:
    told = {"on_loss": "shrink", "min_nodes": 2, "timeouts.step_s": 300.0}
    groups = curves.grouped([curve([0, 1], [0, 1], env_id="E"), curve([0, 1], [0, 1], env_id="E", **told)])
    assert {label: len(group) for label, group in groups.items()} == {"ppo on E": 2}


def test_one_experiment_is_named_by_what_it_is() -> None:
    assert list(curves.grouped([curve([0], [0], env_id="E", seed=1)])) == ["ppo on E"]
    assert list(curves.grouped([curve([0], [0], env_id="E", tasks=["A", "B"])])) == ["ppo on 2 tasks"]


def test_the_mean_runs_over_what_all_reach() -> None:
    band = curves.band([curve([0, 100], [0, 100]), curve([50, 200], [0, 0])])
    assert (band.x[0], band.x[-1]) == (50, 100)
    assert (band.mean[0], band.mean[-1]) == (25, 50)
    assert band.count == 2


def test_runs_that_never_meet_have_no_mean() -> None:
    with pytest.raises(ConfigError, match=r"begins at 2,000, .* has ended \(1,500\)"):
        curves.band([curve([0, 1500], [0, 1]), curve([2000, 3000], [1, 2])])


def test_the_interval_holds_the_mean_and_lies_within_the_curves() -> None:
    rows = [curve([0, 1], [level, level]) for level in (1.0, 2.0, 6.0)]
    band = curves.band(rows)
    assert band.low is not None
    assert band.high is not None
    assert 1.0 <= band.low[0] < band.mean[0] < band.high[0] <= 6.0
    assert band.mean[0] == pytest.approx(3.0)
    again = curves.band(rows)
    assert again.low is not None
    assert (again.low == band.low).all()


def test_equal_curves_have_no_spread_and_one_has_no_interval() -> None:
    band = curves.band([curve([0, 1], [3, 3])] * 3)
    assert band.low is not None
    assert band.low == pytest.approx(band.mean)
    assert curves.band([curve([0, 1], [3, 3])]).low is None


def test_a_picture_and_the_last_values(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path, 1), make_run(tmp_path, 2, value=3.0), make_run(tmp_path, 3, "never", value=0.5)]
    for out in ("plot.png", "plot.svg", "made/for/it.svg"):
        assert main(["plot", *runs, "--out", str(tmp_path / out)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines == [
            "sync.rule=aps: 2000 at 1,000 steps (2 run(s))",
            "sync.rule=never: 500 at 1,000 steps (1 run(s))",
            str(tmp_path / out),
        ]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_a_run_that_is_named_twice_counts_once(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `runs/*` names it: by its own name, and by the link to the newest."""
    runs = [make_run(tmp_path, seed) for seed in (1, 2)]
    (tmp_path / "latest").symlink_to(runs[-1])
    out = str(tmp_path / "plot.png")
    assert main(["plot", *runs, str(tmp_path / "latest"), runs[0] + "/", "--out", out]) == 0
    assert capsys.readouterr().out.splitlines() == ["ppo on E-v0: 1000 at 1,000 steps (2 run(s))", out]


def test_against_seconds(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, 1)
    assert main(["plot", run, "--x", "seconds", "--metric", "charts/SPS", "--out", str(tmp_path / "a.png")]) == 0
    assert "ppo on E-v0: 1 at 100 seconds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metric", "charts/episodic_retrun"], "Did you mean 'charts/episodic_return'?"),
        (["--metric", "charts/learning_rate"], "has no values of 'charts/learning_rate'"),
        (["--out", "plot.bmp"], "must end with .png, .svg, .pdf"),
        (["--out", "/proc/none/plot.png"], "--out '/proc/none/plot.png' cannot be written: No such file or directory."),
    ],
)
def test_what_cannot_be_drawn_is_said(
    arguments: list[str], message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", make_run(tmp_path, 1), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_measured_nothing(tmp_path: pathlib.Path) -> None:
    folder = RunFolder.create(tmp_path, env_id="E", algorithm="ppo", seed=1, now=datetime.datetime(2025, 1, 1))
    folder.write("ppo", {})
    with pytest.raises(ConfigError, match="has no values"):
        curves.load(folder.path, "charts/SPS")


def test_the_interval_is_one_of_95_per_cent() -> None:
    levels = np.random.default_rng(1).normal(size=60)
    band = curves.band([curve([0, 1], [level, level]) for level in levels])
    assert band.low is not None
    assert band.high is not None
    error = levels.std(ddof=1) / np.sqrt(len(levels))
    assert band.mean[0] - band.low[0] == pytest.approx(1.96 * error, rel=0.1)
    assert band.high[0] - band.mean[0] == pytest.approx(1.96 * error, rel=0.1)


def test_help_calls_runs_by_their_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plot", "--help"])
    assert capsys.readouterr().out.startswith("usage: clusterenv plot [-h] RUN... [--metric STR]")
