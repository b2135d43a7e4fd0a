"""The options of `clusterenv train ppo`: what they start from, and who wins."""

from __future__ import annotations

import datetime
import importlib.resources
import pathlib
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.cli.options import parse
from clusterenv.config import Timeouts
from clusterenv.errors import ConfigError
from clusterenv.learners import catalog
from clusterenv.learners.common.runfolder import RunFolder
from clusterenv.learners.common.settings import to_table
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.learners.ppo import PPOConfig, preset
from clusterenv.learners.vmpo import VMPOConfig

if TYPE_CHECKING:
    from clusterenv.learners.common.config import LearnerConfig


def parse_ppo(arguments: list[str]) -> Any:
    return parse(catalog.find("ppo"), arguments)


def saved(tmp_path: pathlib.Path, settings: LearnerConfig, algorithm: str = "ppo") -> RunFolder:
    now = datetime.datetime(2025, 1, 2)
    folder = RunFolder.create(tmp_path, env_id=settings.env_id, algorithm=algorithm, seed=settings.seed, now=now)
    folder.write(algorithm, to_table(settings))
    return folder


def test_without_an_environment_it_is_as_if_the_default_one_were_named() -> None:
    learner = catalog.find("impact")
    told = parse(learner, [])
    assert told.settings == learner.preset("CartPole-v1") != learner.config()
    assert told.run.runs == "runs"


def test_several_tasks_have_the_preset_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog.Entry, "preset", lambda *_: VMPOConfig(passes=7))
    assert parse(catalog.find("vmpo"), []).settings.passes == 7
    tasks = ("CartPole-v1", "clusterenv/CartPoleNoVelocity-v0")
    assert parse(catalog.find("vmpo"), ["--tasks", *tasks]).settings == VMPOConfig(tasks=tasks)


@pytest.mark.parametrize(
    "flag", [["--env-id", "LunarLander-v3"], ["--env-id=LunarLander-v3"], ["--env_id", "LunarLander-v3"]]
)
def test_an_environment_brings_its_preset(flag: list[str]) -> None:
    assert parse_ppo(flag).settings == preset("LunarLander-v3")


def test_streaming_brings_a_preset_of_its_own() -> None:
    told = parse_ppo(["--env-id", "LunarLander-v3", "--mode", "stream"]).settings
    assert told == preset("LunarLander-v3", "stream")
    assert told != parse_ppo(["--env-id", "LunarLander-v3"]).settings


def test_options_win_over_the_preset() -> None:
    told = parse_ppo(["--num-envs", "16", "--env-id", "LunarLander-v3", "--gamma", "0.5"]).settings
    assert (told.num_envs, told.gamma, told.gae_lambda) == (16, 0.5, preset("LunarLander-v3").gae_lambda)


def test_fewer_environments_than_the_presets_batch_has_slots_take_half_of_them() -> None:
    impala = catalog.find("impala")
    tuned = impala.preset("CartPole-v1")
    assert tuned.stream_slots == 8
    few = parse(impala, ["--env-id", "CartPole-v1", "--num-envs", "4"]).settings
    assert (few.num_envs, few.stream_slots, few.batch_slots) == (4, None, 2)
    more = parse(impala, ["--env-id", "CartPole-v1", "--num-envs", "24"]).settings
    assert (more.num_envs, more.stream_slots) == (24, 8)
    with pytest.raises(ConfigError, match="stream_slots=6 must be from 1 to num_envs=4"):
        parse(impala, ["--env-id", "CartPole-v1", "--num-envs", "4", "--stream-slots", "6"])


FOLDER = importlib.resources.files("clusterenv") / "presets"
PRESETS = [path.name.removesuffix(".toml").partition("-") for path in FOLDER.iterdir()]


@pytest.mark.parametrize(("name", "env_id"), [(name, env_id) for name, _, env_id in PRESETS])
@pytest.mark.parametrize(
    "asked",
    [
        ["--inference", "head", "--mode", "stream"],
        ["--sync.rule", "always"],
        ["--sync.rule=every", "--sync.every", "4"],
        ["--sync.target-ess", "0.9"],
        ["--sync.bandwidth", "1 MiB/s"],
    ],
)
def test_a_threshold_of_the_preset_is_in_nobodys_way(name: str, env_id: str, asked: list[str]) -> None:
    parse(catalog.find(name), ["--env-id", env_id.replace("clusterenv-", "clusterenv/"), *asked])


def test_a_threshold_of_the_preset_holds_where_nothing_else_is_said() -> None:
    impact = catalog.find("impact")
    found = [
        parse(impact, ["--env-id", "HalfCheetah-v5", *more]).settings.sync.threshold
        for more in ([], ["--sync.rule", "aps"], ["--sync.threshold", "0.5"])
    ]
    assert found == [0.02, 0.02, 0.5]


def test_synchronisation_is_nested() -> None:
    told = parse_ppo(["--sync.rule", "aps", "--sync.target-ess", "0.9", "--sync.max-lag", "5"]).settings.sync
    assert told == SyncConfig(target_ess=0.9, max_lag=5)
    assert parse_ppo(["--sync.rule", "every", "--sync.every", "4"]).settings.sync == SyncConfig(rule="every", every=4)


@pytest.mark.parametrize("learner", catalog.LEARNERS)
def test_every_learner_can_be_told_what_a_loss_means(tmp_path: pathlib.Path, learner: str) -> None:
    words = ["--on-loss", "shrink", "--min-nodes", "2", "--timeouts.step-s", "300", "--timeouts.start-s", "None"]
    words += ["--cluster", "tcp:nodes=3", "--mode", "stream"]
    entry = catalog.find(learner)
    told = parse(entry, words).settings
    assert (told.on_loss, told.min_nodes, told.timeouts) == ("shrink", 2, Timeouts(step_s=300.0, start_s=None))
    folder = saved(tmp_path, told, learner)
    for name in ("--resume", "--config"):
        where = str(folder.path if name == "--resume" else folder.settings_file)
        assert parse(entry, [name, where]).settings == told
        other = parse(entry, [name, where, "--on-loss", "raise", "--timeouts.step-s", "9"]).settings
        assert (other.on_loss, other.timeouts) == ("raise", Timeouts(step_s=9.0, start_s=None))
        with pytest.raises(ConfigError, match="min_nodes=4 must be at most 3"):
            parse(entry, [name, where, "--min-nodes", "4"])


def test_a_file_from_before_there_were_such_settings_has_the_defaults() -> None:
    table = to_table(PPOConfig())
    for name in ("on_loss", "min_nodes", "timeouts"):
        del table[name]
    assert catalog.settings_of("ppo", table) == PPOConfig()


def test_every_kind_of_value() -> None:
    told = parse_ppo(
        [
            "--mode",
            "stream",
            "--publish-every",
            "gradient step",
            "--hidden",
            "32",
            "16",
            "--no-anneal",
            "--track",
            "--quiet",
        ]
    )
    assert (told.settings.mode, told.settings.publish_every) == ("stream", "gradient step")
    assert (told.settings.hidden, told.settings.anneal) == ((32, 16), False)
    assert (told.run.track, told.run.quiet, told.run.json) == (True, True, False)


@pytest.mark.parametrize("where", ["--resume", "--config"])
def test_a_run_brings_its_settings_and_options_win_over_them(tmp_path: pathlib.Path, where: str) -> None:
    settings = PPOConfig(seed=7, gamma=0.7, sync=SyncConfig(rule="every", every=3), hidden=(8,))
    folder = saved(tmp_path, settings)
    name = str(folder.path if where == "--resume" else folder.settings_file)
    assert parse_ppo([where, name]).settings == settings
    assert parse_ppo([where, name, "--gamma", "0.8"]).settings.gamma == 0.8
    assert parse_ppo([where, name, "--gamma", "0.8"]).settings.seed == 7


def test_a_run_of_another_algorithm_is_refused(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path, PPOConfig())
    folder.write("a3c", {})
    with pytest.raises(ConfigError, match="unknown algorithm 'a3c'"):
        parse_ppo(["--resume", str(folder.path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gamma", "2"], "gamma=2.0 must be at most 1"),
        (["--resume", "nowhere"], "is no run"),
        (["--config", "nowhere.toml"], "cannot be read"),
        (["--cluster", "slrum:4"], "unknown kind .slrum.. Did you mean .slurm."),
    ],
)
def test_what_does_not_fit_together_is_said_in_our_words(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_ppo(arguments)


@pytest.mark.parametrize("arguments", [["--gama", "0.9"], ["--num-envs", "many"], ["--mode", "walk"]])
def test_what_cannot_be_read_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_ppo(arguments)
    assert caught.value.code == 2
    told = capsys.readouterr()
    assert arguments[0] in told.out + told.err


def test_a_part_that_does_not_fit_together_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_ppo(["--sync.rule", "always", "--sync.threshold", "1"])
    assert caught.value.code == 2
    assert "means nothing to" in capsys.readouterr().err


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_ppo(["--env-id", "LunarLander-v3", "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for flag in ("--env-id", "--cluster", "--sync.threshold", "--sync.bandwidth", "--resume", "--track"):
        assert flag in out
    assert "0.999" in out  # the preset of the environment named


def test_resuming_and_a_file_exclude_each_other(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path, PPOConfig())
    with pytest.raises(ConfigError, match="cannot both be given"):
        parse_ppo(["--resume", str(folder.path), "--config", str(folder.settings_file)])


def test_the_published_settings_in_the_docs_are_those_and_no_presets() -> None:
    page = pathlib.Path(__file__).parents[2] / "docs/learners/impala.md"
    commands = page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    paper, mono = (line.split()[3:] for line in commands if "AtariPong" in line and "--reduction sum" in line)
    told = [parse(catalog.find("impala"), arguments).settings for arguments in (paper, mono)]
    for settings in told:
        assert (settings.max_grad_norm, settings.rmsprop_eps, settings.rmsprop_alpha) == (40.0, 0.01, 0.99)
        assert (settings.publish_every, settings.rho_bar, settings.c_bar, settings.vtrace_lambda) == (1, 1.0, 1.0, 1.0)
        assert (settings.value_coef, settings.gamma, settings.reward) == (0.5, 0.99, "clip")
    assert [(each.rollout_steps, each.batch_slots, each.learning_rate, each.entropy_coef) for each in told] == [
        (20, 32, 6e-4, 0.01),
        (80, 8, 4.8e-4, 6e-4),
    ]
