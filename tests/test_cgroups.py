"""What control groups say, read from folders like theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterenv import config
from clusterenv.cgroups import cpu_limit

if TYPE_CHECKING:
    import pathlib


def limit_of(folder: pathlib.Path, own: str, files: dict[str, str]) -> float | None:
    for name, content in files.items():
        file = folder / "mounted" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")
    (folder / "own").write_text(own)
    return cpu_limit(folder / "mounted", folder / "own")


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {}, None),
        ("0::/pods/mine\n", {"pods/cpu.max": "400000 100000", "pods/mine/cpu.max": "max 100000"}, 4.0),
        ("0::/pods/mine\n", {"pods/cpu.max": "400000 100000", "pods/mine/cpu.max": "20000 100000"}, 0.2),
        ("0::/seen/from/outside\n", {"cpu.max": "200000 100000"}, 2.0),
        (
            "5:memory:/a\n4:cpu,cpuacct:/a\n",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "300000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
            3.0,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("4:cpuset:/a\n", {"cpuset/a/cpu.max": "100000 100000"}, None),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
        ("0::/\n", {"cpu.max": "1 0"}, None),
        ("", {"cpu.max": "100000 100000"}, None),
    ],
)
def test_the_smallest_limit_of_all_groups_counts(
    own: str, files: dict[str, str], limit: float | None, tmp_path: pathlib.Path
) -> None:
    assert limit_of(tmp_path, own, files) == limit


def test_without_control_groups_there_is_no_limit(tmp_path: pathlib.Path) -> None:
    assert cpu_limit(tmp_path / "none", tmp_path / "none either") is None


@pytest.mark.parametrize(("limit", "cores"), [(None, 4), (0.2, 1), (1.5, 2), (3.0, 3), (64.0, 4)])
def test_a_limit_makes_fewer_cores_usable(limit: float | None, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(config, "cpu_limit", lambda: limit)
    assert config.usable_cores() == cores
