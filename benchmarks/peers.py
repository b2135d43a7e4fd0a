"""Build one virtual environment per peer library, because their pins cannot live together.

The command is `python -m benchmarks.setup_peers`. A library that does not install is recorded with the
reason, and the benchmark then shows that reason in the library's place in the table.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_VENVS = ROOT / ".bench-venvs"

# What every contender steps. The peers get the versions of the interpreter that runs this file, so that a
# ratio compares two ways to step the same environment, not two releases of the environment.
ENVIRONMENTS = ("gymnasium[box2d]", "ale-py", "opencv-python-headless", "psutil")
SAME_AS_HERE = ("gymnasium", "numpy", "ale-py", "Box2D", "opencv-python-headless", "pygame-ce")

# PufferLib 3.0.0 reads a name in its setup.py that is never set when its C environments are left out.
# They are left out because building them downloads raylib and Box2D, and the benchmark steps Gymnasium's.
PUFFER_SITECUSTOMIZE = "import builtins\nbuiltins.c_extension_paths = []\n"
PUFFER_BUILD_ENV = {"NO_OCEAN": "1", "NO_TRAIN": "1"}
PUFFER_BUILD_TOOLS = ("torch", "setuptools<81", "wheel", "Cython")


@dataclass(frozen=True, slots=True)
class Peer:
    """A library to measure against, and the pip calls that install it in this order."""

    name: str
    probe: str
    """Python statements that must succeed in the new environment."""
    installs: tuple[tuple[str, ...], ...]
    build_env: dict[str, str] = field(default_factory=dict)
    same_versions: bool = True
    """Hold the environment packages at this interpreter's versions."""


PEERS = {
    peer.name: peer
    for peer in (
        Peer("sb3", "import stable_baselines3", ((*ENVIRONMENTS, "torch", "stable-baselines3"),)),
        Peer("torchrl", "import torchrl.envs", ((*ENVIRONMENTS, "torch", "torchrl"),)),
        Peer("tianshou", "import tianshou.env", ((*ENVIRONMENTS, "torch", "tianshou"),)),
        Peer("envpool", "import envpool", ((*ENVIRONMENTS, "envpool"),)),
        Peer(
            "pufferlib",
            "import pufferlib.vector, pufferlib.emulation",
            (
                (*PUFFER_BUILD_TOOLS, "numpy<2"),
                ("--no-build-isolation", "pufferlib==3.0.0"),
                # Not gymnasium[box2d]: in this release it wants box2d-py, which needs swig to build.
                ("numpy<2", "Box2D", "pygame-ce", "ale-py<0.11", "opencv-python-headless<4.11", "psutil"),
            ),
            build_env=PUFFER_BUILD_ENV,
            same_versions=False,
        ),
        # The same vectoriser against its own pins, over the Gymnasium that everyone else here steps.
        Peer(
            "pufferlib-unpinned",
            "import pufferlib.vector, pufferlib.emulation",
            (
                (*ENVIRONMENTS, *PUFFER_BUILD_TOOLS),
                ("--no-build-isolation", "--no-deps", "pufferlib==3.0.0"),
                ("--no-deps", "gym==0.23.0"),
                ("gym-notices", "cloudpickle", "pettingzoo"),
            ),
            build_env=PUFFER_BUILD_ENV,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the building of one environment ended."""

    name: str
    ok: bool
    reason: str
    versions: dict[str, str]


def interpreter(venvs: Path, name: str) -> Path:
    """Return the path of the Python of peer `name` below the folder `venvs`."""
    return venvs / name / "bin" / "python"


def read_outcome(venvs: Path, name: str) -> Outcome | None:
    """Return what the last build of peer `name` left behind, or None when it was never built."""
    try:
        return Outcome(**json.loads((venvs / f"{name}.json").read_text()))
    except FileNotFoundError:
        return None


def build(peer: Peer, venvs: Path, constraints: Path, limit_s: float) -> Outcome:
    """Create the environment of one peer and record the outcome beside it.

    Args:
        peer: what to install.
        venvs: the folder that holds one environment per peer.
        constraints: a pip constraints file that applies to every install.
        limit_s: the longest that one pip call may take.
    """
    venvs.mkdir(parents=True, exist_ok=True)
    home = venvs / peer.name
    shutil.rmtree(home, ignore_errors=True)
    reason = _install(peer, home, constraints, limit_s, venvs / f"{peer.name}.log")
    versions = {} if reason else _versions(interpreter(venvs, peer.name))
    outcome = Outcome(peer.name, not reason, reason, versions)
    (venvs / f"{peer.name}.json").write_text(json.dumps(dataclasses.asdict(outcome), indent=1) + "\n")
    return outcome


def _install(peer: Peer, home: Path, constraints: Path, limit_s: float, log: Path) -> str:
    """Run the installs of `peer`; return an empty text, or the reason why one failed."""
    with tempfile.TemporaryDirectory() as scratch, log.open("w") as sink:
        held = Path(scratch, "constraints.txt")
        held.write_text(constraints.read_text() + (_same_versions() if peer.same_versions else ""))
        environ = _pip_environ(peer, held, Path(scratch, "site"))
        python = str(home / "bin" / "python")
        calls = [[sys.executable, "-m", "venv", str(home)]]
        calls += [[python, "-m", "pip", "install", "--quiet", *packages] for packages in peer.installs]
        calls += [[python, "-c", peer.probe]]
        for call in calls:
            try:
                # A scratch folder as the current one: importing pufferlib leaves a link where it stands.
                done = subprocess.run(
                    call, env=environ, cwd=scratch, stdout=sink, stderr=sink, timeout=limit_s, check=False
                )
            except subprocess.TimeoutExpired:
                return f"`{_readable(call)}` took longer than {limit_s:.0f} s"
            if done.returncode != 0:
                return f"`{_readable(call)}` failed: {_last_line(log)}"
    return ""


def _pip_environ(peer: Peer, constraints: Path, site: Path) -> dict[str, str]:
    environ = {**os.environ, **peer.build_env, "PIP_CONSTRAINT": str(constraints)}
    environ.pop("PYTHONPATH", None)
    if peer.build_env:
        site.mkdir()
        (site / "sitecustomize.py").write_text(PUFFER_SITECUSTOMIZE)
        environ["PYTHONPATH"] = str(site)
    return environ


def _same_versions() -> str:
    lines = []
    for package in SAME_AS_HERE:
        try:
            lines.append(f"{package}=={metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return "\n".join(["", *lines, ""])


def _readable(call: list[str]) -> str:
    return " ".join([Path(call[0]).name, *call[1:]])


def _last_line(log: Path) -> str:
    # pip ends a failed build with notes about itself; the line with the cause says so.
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    causes = [line for line in lines if "Error" in line or "ERROR" in line]
    return (causes or lines or ["no output"])[-1]


def _versions(python: Path) -> dict[str, str]:
    code = (
        "import json; from importlib.metadata import distributions as d;"
        "print(json.dumps({p.metadata['Name']: p.version for p in d()}))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))
