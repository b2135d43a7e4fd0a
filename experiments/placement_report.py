"""The page of `experiments.placement`, from all that has been measured.

python -m experiments.placement_report
"""

from __future__ import annotations

import json
import pathlib
from dataclasses import dataclass
from typing import Any

import tyro

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results"

TOP = """\
# Where the policy should act

Made by `python -m experiments.placement`.

Steps per second with the policy on the workers (`--inference worker`) and on the head (`--inference head`), as the
network grows. *Acting* takes batches and throws them away, so it shows what environments and policy allow; *learning*
makes one update of IMPALA after each batch, on the same device as the head's inference. *Head / worker* above 1 means
that the head is the better place. *Lag* is how many versions old the data was. A *bare loop* steps the same
environments in one process per core, without a policy and without waiting for anybody; where the shares of it are
told, it was measured by turns with the rest. The made-up environment keeps a core busy for the time named; the dense
network sees four numbers of it, the others four frames of 84 x 84.
"""
HEAD = (
    "| network | a step takes | acting: worker | head | head / worker | learning: worker | head | head / worker "
    "| lag: worker, head | rows in a batch | p50, p99 ms |"
)
LIMIT_HEAD = " of a bare loop, acting: worker, head | learning |"


@dataclass(frozen=True, kw_only=True)
class Args:
    """Make the page again."""

    folder: pathlib.Path = RESULTS
    """where placement-*.json lie, and placement.md goes"""


def section(told: dict[str, Any]) -> str:
    """One file of results, as a table with workers and head side by side."""
    lines = [f"## {told['machine']}", "", f"`{told['command']}`"]
    if "load" in told:
        lines += ["", f"Load of the machine when it began: {told['load']}."]
    if "note" in told:
        lines += ["", told["note"]]
    limits = any("acting_of_limit" in cell for cell in told["cells"])
    head = HEAD + LIMIT_HEAD if limits else HEAD
    lines += ["", head, "| --- " * (head.count(" | ") + 1) + "|"]
    pairs: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for cell in told["cells"]:
        pairs.setdefault((cell["network"], cell["env"]), {})[cell["inference"]] = cell
    lines += [_row(network, env, found, limits=limits) for (network, env), found in pairs.items()]
    return "\n".join(lines) + "\n"


def _row(network: str, env: str, found: dict[str, dict[str, Any]], *, limits: bool) -> str:
    worker, head = found.get("worker", {}), found.get("head", {})
    cells = [network, env]
    for part in ("acting", "learning"):
        rates: list[Any] = [cell.get(f"{part}_steps_per_s") for cell in (worker, head)]
        cells += ["-" if rate is None else f"{rate:,}" for rate in rates]
        cells.append(f"{rates[1] / rates[0]:.2f}" if all(rates) else "-")
    cells.append(", ".join(str(cell.get("learning_lag", "-")) for cell in (worker, head)))
    cells.append(str(head.get("learning_batch", "-")))
    cells.append(", ".join(str(head.get(f"learning_{name}_ms", "-")) for name in ("p50", "p99")))
    for part in ("acting", "learning") if limits else ():
        cells.append(", ".join(str(cell.get(f"{part}_of_limit", "-")) for cell in (worker, head)))
    failed = [f"{cell['inference']}: {cell['error']}" for cell in found.values() if "error" in cell]
    return f"| {' | '.join(cells)} |" + (f" {'; '.join(failed)}" if failed else "")


def write(folder: pathlib.Path) -> pathlib.Path:
    """Make placement.md of all results in a folder."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("placement-*.json"))]
    page = folder / "placement.md"
    page.write_text("\n".join([TOP, *(section(told) for told in found)]))
    return page


if __name__ == "__main__":
    write(tyro.cli(Args).folder)
