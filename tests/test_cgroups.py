"""What control groups say, read from folders like theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterenv import cgroups, config
from clusterenv.cgroups import cpu_limit, free_memory, memory_left

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable


def groups(folder: pathlib.Path, own: str, files: dict[str, str]) -> tuple[pathlib.Path, pathlib.Path]:
    for name, content in files.items():
        file = folder / "mounted" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")
    (folder / "own").write_text(own)
    return folder / "mounted", folder / "own"


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
    assert cpu_limit(*groups(tmp_path, own, files)) == limit


@pytest.mark.parametrize(
    ("own", "files", "left"),
    [
        ("0::/\n", {"memory.max": "1000", "memory.current": "300"}, 700),
        ("0::/\n", {"memory.max": "1000", "memory.current": "300", "memory.stat": "file 9\ninactive_file 200"}, 900),
        ("0::/\n", {"memory.max": "max", "memory.current": "300"}, None),
        ("0::/\n", {"memory.max": "1000", "memory.current": "1200"}, 0),
        ("0::/\n", {"memory.max": "1000"}, None),
        ("0::/\n", {}, None),
        (
            "0::/pods/mine\n",
            {"pods/memory.max": "1000", "pods/memory.current": "900", "pods/mine/memory.max": "max"},
            100,
        ),
        (
            "5:memory:/a\n4:cpu:/a\n",
            {
                "memory/a/memory.limit_in_bytes": "500",
                "memory/a/memory.usage_in_bytes": "450",
                "memory/a/memory.stat": "inactive_file 7\ntotal_inactive_file 30",
            },
            80,
        ),
        ("4:cpu:/a\n", {"cpu/a/memory.max": "1000", "cpu/a/memory.current": "300"}, None),
    ],
)
def test_what_is_left_of_the_memory_is_that_of_the_tightest_group(
    own: str, files: dict[str, str], left: int | None, tmp_path: pathlib.Path
) -> None:
    assert memory_left(*groups(tmp_path, own, files)) == left


@pytest.mark.parametrize("ask", [cpu_limit, memory_left])
def test_without_control_groups_there_is_no_limit(ask: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    assert ask(tmp_path / "none", tmp_path / "none either") is None


def test_a_container_may_have_less_than_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "memory_left", lambda: None)
    machine = free_memory()
    assert machine is not None
    monkeypatch.setattr(cgroups, "memory_left", lambda: 2**20)
    assert free_memory() == 2**20
    monkeypatch.setattr(cgroups, "memory_left", lambda: 2**60)
    assert free_memory() == pytest.approx(machine, rel=0.2)


@pytest.mark.parametrize(("limit", "cores"), [(None, 4), (0.2, 1), (1.5, 2), (3.0, 3), (64.0, 4)])
def test_a_limit_makes_fewer_cores_usable(limit: float | None, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(config, "cpu_limit", lambda: limit)
    assert config.usable_cores() == cores
