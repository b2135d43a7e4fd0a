"""Arguments of environments as text: what they mean, and what is refused before anything starts."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.cli.options import parse
from clusterenv.env.make import make_vec
from clusterenv.errors import ConfigError
from clusterenv.learners import catalog
from clusterenv.learners.common import toml
from clusterenv.learners.common.env_args import RESERVED, parse_env_args
from clusterenv.learners.common.settings import from_table, to_table
from clusterenv.learners.impala import IMPALA, IMPALAConfig
from clusterenv.learners.ppo import PPO, PPOConfig
from tests.learners.runs import Notebook


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("delay=20", 20),
        ("delay = 20", 20),
        ("rate=-0.5", -0.5),
        ("rate=1e-3", 1e-3),
        ("big=108_000", 108_000),
        ("on=true", True),
        ("on=false", False),
        ("game=Pong", "Pong"),
        ("game=ALE/Pong-v5", "ALE/Pong-v5"),
        ("path=module:name.part", "module:name.part"),
        ('text="true"', "true"),
        ('text="a = b, c"', "a = b, c"),
        ("text='single'", "single"),
        ("sizes=[1, 2]", [1, 2]),
        ("table={ a = 1, b = 'x' }", {"a": 1, "b": "x"}),
    ],
)
def test_values_are_as_in_toml_and_words_need_no_quotes(text: str, value: Any) -> None:
    (found,) = parse_env_args([text]).values()
    assert found == value
    assert type(found) is type(value)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True).filter(lambda name: name not in RESERVED),
        st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(min_codepoint=32, max_codepoint=126)),
    )
)
def test_whatever_is_written_as_toml_comes_back(arguments: dict[str, Any]) -> None:
    # JSON and TOML write these in the same way.
    assert parse_env_args([f"{name}={json.dumps(value)}" for name, value in arguments.items()]) == arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["delay"], "'delay', which is not name=value, such as delay=20"),
        (["=3"], "'=3', which is not name=value"),
        (["two words=3"], "is not name=value"),
        (["delay="], "delay='', which is neither a word nor a value"),
        (["a=two words"], "a='two words', which is neither a word nor a value as in TOML"),
        (["a=1.2.3"], "a='1.2.3', which is neither"),
        (["a='open"], "which is neither a word nor a value"),
        (["on=True"], "on=True. Write on=true"),
        (["on=False"], "on=False. Write on=false"),
        (["x=None"], "x=None. There is no such value: leave the argument out"),
        (["day=2025-01-02"], "must be one number, boolean, text, list or table"),
        (["days=[2025-01-02]"], "must be one number, boolean, text, list or table"),
        (["a=1\nb=2"], "must be one number"),
        (["a=1", "a=2"], "has 'a' twice: 1 and '2'"),
        (["num_envs=3"], "num_envs is not an argument of the environment"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_words(arguments: list[str], message: str) -> None:
    for make in (lambda: parse_env_args(arguments), lambda: PPOConfig(env_args=tuple(arguments))):
        with pytest.raises(ConfigError) as told:
            make()
        assert message in str(told.value)


def test_names_that_make_vec_would_take_for_itself_are_reserved() -> None:
    named = {name for name, each in inspect.signature(make_vec).parameters.items() if each.kind is not each.VAR_KEYWORD}
    assert named == RESERVED


def test_they_survive_the_file_of_a_run() -> None:
    config = IMPALAConfig(env_args=("delay=3", "game=Pong", 'text="a \\"b\\""'), last_inputs=True)
    again = from_table(IMPALAConfig, toml.loads(tomli_w.dumps(to_table(config))))
    assert again == config
    assert again.env_kwargs() == {"delay": 3, "game": "Pong", "text": 'a "b"'}


def test_they_are_typed_without_quotes() -> None:
    told = parse(catalog.find("impala"), ["--env-args", "game=Pong", "episodic_life=false", "--last-inputs"]).settings
    assert (told.env_args, told.last_inputs) == (("game=Pong", "episodic_life=false"), True)


def test_a_slip_on_the_command_line_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    from clusterenv.cli.main import main

    assert main(["train", "ppo", "--cluster", "inproc", "--env-args", "delay"]) == 2
    assert "ConfigError: env_args has 'delay'" in capsys.readouterr().err


SMALL: dict[str, Any] = {
    "env_id": "clusterenv/Recall-v0",
    "num_envs": 2,
    "rollout_steps": 16,
    "total_steps": 32,
    "record_every": 1,
    "runtime": "torch",
    "mode": "lock step",
}


@pytest.mark.parametrize("delay", [0, 3])
def test_the_environments_get_them(delay: int) -> None:
    notes = Notebook()
    learner = PPO(PPOConfig(cluster="inproc", env_args=(f"delay={delay}",), minibatches=1, **SMALL))
    learner.recorder.sinks.append(notes)
    learner.train()
    assert notes.rows[-1]["charts/episodic_length"] == delay + 2


@pytest.mark.parametrize("cluster", ["inproc", "local:1", "tcp:nodes=1,workers=1"])
def test_the_last_inputs_are_added_on_the_workers(cluster: str) -> None:
    # The graph, since nothing that is code goes to other hosts.
    config = {**SMALL, "runtime": "onnx" if cluster.startswith("tcp") else "torch"}
    notes = Notebook()
    learner = IMPALA(IMPALAConfig(cluster=cluster, env_args=("delay=1",), last_inputs=True, lstm=4, **config))
    learner.recorder.sinks.append(notes)
    learner.train()
    # The cue, the question, one of two last actions, the last reward.
    assert learner.network.body.encoder.size == 2 + 2 + 1
    assert notes.rows[-1]["charts/episodic_length"] == 3


def test_without_last_inputs_the_network_sees_the_observation_alone() -> None:
    learner = IMPALA(IMPALAConfig(cluster="inproc", **SMALL))
    learner.train()
    assert learner.network.encoder.size == 2
