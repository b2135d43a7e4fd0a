"""Every Python block of the README, the guide and the other pages runs, and every command they name exists."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest

from clusterenv import make_vec
from clusterenv.config import OnLoss, parse_on_loss
from clusterenv.learners import catalog
from clusterenv.sync.rules import Reason

ROOT = pathlib.Path(__file__).parent.parent
LEARNERS = ("ppo", "impala", "impact", "vmpo", "apex", "r2d2", "sac")
LEARNER_PAGES = tuple(f"docs/learners/{name}.md" for name in LEARNERS)
PAGES = (
    *("README.md", "docs/guide.md", "docs/migration.md", "docs/clusters/README.md", "docs/testing.md"),
    "docs/learners/README.md",
    *LEARNER_PAGES,
    "docs/learners/seed.md",
)
# Learners that do not take every action.
ENVIRONMENTS = {"apex": ("CartPole-v1",), "r2d2": ("CartPole-v1",), "sac": ("Pendulum-v1",)}
CONTINUED = "# continued\n"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def programs_of(page: str) -> list[str]:
    """The blocks that are programs, each with those that continue it."""
    programs: list[str] = []
    for block in blocks(page, "python"):
        if block.startswith(CONTINUED):
            programs[-1] += block
        elif block.startswith(("import", "from")):
            programs.append(block)
        # Any other block shows calls side by side and is no program.
    return programs


def whole_programs() -> list[tuple[str, str]]:
    return [(page, program) for page in PAGES for program in programs_of(page)]


@pytest.mark.parametrize(("page", "program"), whole_programs(), ids=lambda value: value.split("\n")[0][:40])
def test_a_program_of_the_documentation_runs(page: str, program: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=250, cwd=ROOT, check=False
    )
    assert result.returncode == 0, f"{page}:\n{result.stderr}"


def test_the_guide_says_which_settings_of_networks_a_learner_has() -> None:
    text = (ROOT / "docs/guide.md").read_text()
    section = text[text.index("### Networks and memory") : text.index("### How good is it?")]
    settings = {name.replace("-", "_") for name in re.findall(r"^\| `--([a-z-]+)", section, re.MULTILINE)}
    found = {name: settings & set(catalog.find(name).config.__dataclass_fields__) for name in LEARNERS}
    assert [name for name in LEARNERS if found[name] == settings] == ["impala", "impact", "vmpo", "r2d2"]
    assert "IMPALA, IMPACT, V-MPO and R2D2 take all of these" in section
    assert settings - found["apex"] == {"lstm", "last_inputs"}
    assert "Ape-X all but `--lstm` and `--last-inputs`" in section
    assert found["ppo"] == found["sac"] == {"hidden", "normalize_observations"}


def test_what_the_readme_shows_of_policies_runs() -> None:
    (agent,) = (block for block in blocks("docs/migration.md", "python") if "class Agent" in block)
    (shown,) = (block for block in blocks("README.md", "python") if "envs.attach(agent" in block)
    # The agent is the reader's own; and the loop would never end.
    program = agent[: agent.index("envs =")] + shown.replace("    ...", "    break") + "envs.close()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=250, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_guide_lists_every_reason_for_which_weights_move() -> None:
    found = re.search(r"how often weights moved, why: ([a-z, ]+) \|", (ROOT / "docs/guide.md").read_text())
    assert found is not None
    assert sorted(found[1].split(", ")) == sorted(reason.value for reason in Reason)


@pytest.mark.parametrize("function", [make_vec, parse_on_loss])
def test_the_choices_after_a_loss_are_all_named(function: Any) -> None:
    known = {choice.value for choice in OnLoss}
    lines = [line for line in function.__doc__.splitlines() if '"restart"' in line]
    assert [set(re.findall(r'"([a-z]+)"', line)) for line in lines] == [known]


def test_the_guide_names_every_choice_after_a_loss() -> None:
    text = (ROOT / "docs/guide.md").read_text()
    assert set(re.findall(r'on_loss="([a-z]+)"', text)) == {choice.value for choice in OnLoss}


def test_the_first_screen_shows_code_early() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert lines.index("```python") < 18
    assert next(number for number, line in enumerate(lines) if "pip install" in line) < 12


@pytest.mark.parametrize("command", re.findall(r"^make (\w+)", "\n".join(blocks("README.md", "sh")), re.MULTILINE))
def test_a_make_command_of_the_readme_exists(command: str) -> None:
    result = subprocess.run(["make", "--dry-run", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr


def test_links_of_the_documentation_lead_somewhere() -> None:
    for page in (
        *PAGES,
        "docs/design.md",
        "docs/scaling.md",
        "docs/clusters/kubernetes.md",
        "examples/README.md",
        "benchmarks/README.md",
    ):
        folder = (ROOT / page).parent
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
            assert (folder / target).exists(), f"{page} links to {target}"


def commands(name: str) -> list[str]:
    """What follows `clusterenv NAME` in the blocks for the shell, and in code in tables, on all pages."""
    shell = "\n".join(block for page in PAGES for block in blocks(page, "sh"))
    joined = re.sub(r"\\\n\s*", "", shell)  # a line that goes on in the next one
    told = re.findall(rf"^clusterenv {name} (.*)$", joined, re.MULTILINE)
    inline = [
        line for page in PAGES for line in re.findall(rf"\| `clusterenv {name} ([^`]*)`", (ROOT / page).read_text())
    ]
    return sorted({*told, *inline})


@pytest.mark.parametrize("line", commands("train"))
def test_the_options_of_a_training_command_exist(line: str) -> None:
    from clusterenv.cli.options import parse
    from clusterenv.learners import catalog

    algorithm, *arguments = shlex.split(line)
    if "--resume" in arguments:  # which needs a run
        at = arguments.index("--resume")
        del arguments[at : at + 2]
    assert parse(catalog.find(algorithm), arguments).settings


@pytest.mark.parametrize("line", commands("eval"))
def test_the_options_of_an_evaluation_exist(line: str) -> None:
    from clusterenv.cli.evaluate import parse

    assert parse(shlex.split(line)).run


@pytest.mark.parametrize("line", commands("bench"))
def test_the_options_of_a_measurement_exist(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import tyro

    from clusterenv.cli.bench import BenchArgs
    from clusterenv.learners.common import devices

    monkeypatch.setattr(devices, "check_device", lambda name: None)  # a page may be for a machine with a GPU
    tyro.cli(BenchArgs, args=shlex.split(line)).check()


@pytest.mark.parametrize("line", commands("plot"))
def test_the_options_of_a_plot_exist(line: str) -> None:
    from clusterenv.cli.plot import parse

    assert parse(shlex.split(line)).runs


def test_every_learner_has_a_page_with_the_same_headings() -> None:
    from clusterenv.learners import catalog

    assert set(LEARNERS) == set(catalog.LEARNERS)
    for page in (*LEARNER_PAGES, "docs/learners/seed.md"):
        headings = re.findall(r"^## (.*)$", (ROOT / page).read_text(), re.MULTILINE)
        assert headings == ["Overview", "Usage", "Metrics", "Details and their reasons", "Results"], page


def metrics_of(page: str) -> set[str]:
    """The metrics that a page explains: the code in the first column of its tables."""
    rows = re.findall(r"^\| (`[a-z]+/.*?) \|", (ROOT / page).read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learners_page_explains_what_it_writes(name: str) -> None:
    """Every metric of a run, and none that it does not write."""
    from clusterenv.learners import catalog
    from clusterenv.learners.common.sync import SyncConfig
    from clusterenv.learners.replay.config import ReplayConfig

    written: set[str] = set()
    entry = catalog.find(name)
    some: dict[str, Any] = {"learning_starts": 16, "publish_every": 1} if issubclass(entry.config, ReplayConfig) else {}
    for env_id in ENVIRONMENTS.get(name, ("CartPole-v1", "Pendulum-v1")):  # some are for continuous actions
        config = entry.config(
            env_id=env_id,
            env_args=("max_episode_steps=5",),
            cluster="inproc",
            num_envs=4,
            rollout_steps=8,
            total_steps=12 * 32,  # V-MPO makes a version of every tenth update
            record_every=1,
            runtime="torch",
            mode="lock step",
            sync=SyncConfig(rule="on-change"),  # so that a version that is published is applied
            measure_drift=True,
            **some,
        )
        for update in entry.learner()(config).updates():
            written |= update.metrics.keys()
    named = {metric for metric in written if not metric.startswith("sync/reason/")}
    shared, own = (
        # "sync/reason/..." is a family of names, of which a run writes some or none.
        {metric for metric in metrics_of(f"docs/learners/{page}.md") if not metric.endswith("/...")}
        for page in ("README", name)
    )
    mine = {metric for metric in named if metric.startswith(("losses/", "replay/"))}
    assert own == mine
    assert shared == named - mine


def test_the_page_of_inference_on_the_head_explains_what_it_writes() -> None:
    from clusterenv.learners.impala import IMPALA, IMPALAConfig

    config = IMPALAConfig(
        env_id="CartPole-v1",
        cluster="inproc",
        num_envs=4,
        rollout_steps=8,
        total_steps=128,
        record_every=1,
        inference="head",
    )
    written = {name for update in IMPALA(config).updates() for name in update.metrics}
    own = {name for name in written if name.startswith("inference/")}
    assert metrics_of("docs/learners/seed.md") == own
    assert "cluster/worker_wait_fraction" not in written
    assert not {name for name in written if name.startswith(("cluster/step_", "cluster/strag", "sync/publish_to_"))}
