"""Command line: build the virtual environments of the peer libraries that `benchmarks.step` measures.

python -m benchmarks.setup_peers [--venvs DIR] [--only sb3 envpool]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - tyro reads the annotations at run time

import tyro
from rich.console import Console
from rich.markup import escape

from benchmarks.peers import DEFAULT_VENVS, PEERS, ROOT, build


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """Build the virtual environments of the peer libraries."""

    venvs: Path = DEFAULT_VENVS
    """Folder that gets one virtual environment per peer."""
    only: list[str] = field(default_factory=list)
    """Build only these peers (default: all)."""
    constraints: Path = ROOT / "constraints.txt"
    """pip constraints that hold in every environment; they keep torch at its CPU build."""
    limit_s: float = 1200.0
    """The longest that one pip call may take."""


def main(args: Args) -> int:
    """Build what was asked for; return 1 when nothing could be built."""
    console = Console()
    unknown = sorted(set(args.only) - set(PEERS))
    if unknown:
        console.print(f"[red]unknown peers: {', '.join(unknown)}. Known: {', '.join(PEERS)}.")
        return 2
    built = 0
    for name in args.only or PEERS:
        with console.status(f"building {name}"):
            outcome = build(PEERS[name], args.venvs.resolve(), args.constraints.resolve(), args.limit_s)
        built += outcome.ok
        console.print(f"{name}: " + ("[green]ready" if outcome.ok else f"[red]not available: {escape(outcome.reason)}"))
    return 0 if built else 1


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
