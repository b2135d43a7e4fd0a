"""The process in which one target is fuzzed; `fuzz.run` starts it and reads what it says."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
from typing import Any

from fuzz.mutate import search
from fuzz.run import HANG_S, MAX_INPUT_BYTES, ROOM_BYTES, limit_memory


def main(name: str, seconds: int, seed: int, engine: str, out: pathlib.Path) -> int:
    """Fuzz until the time is up, or something is found."""
    return (_with_atheris if engine == "atheris" else _with_mutations)(name, seconds, seed, out)


def _with_mutations(name: str, seconds: int, seed: int, out: pathlib.Path) -> int:
    from fuzz.seeds import SEEDS
    from fuzz.targets import TARGETS

    seeds = SEEDS[name]()
    limit_memory(ROOM_BYTES)
    tried, finding = search(TARGETS[name], seeds, seed=seed, seconds=seconds, hang_s=HANG_S)
    print(f"number_of_executed_units: {tried}")
    if finding is None:
        return 0
    (out / f"{name}-{type(finding.error).__name__}-{tried}").write_bytes(finding.data)
    print(finding.text)
    return 1


def _with_atheris(name: str, seconds: int, seed: int, out: pathlib.Path) -> int:
    import atheris

    instrumented: Any = atheris.instrument_imports(include=["clusterenv", "fuzz", "tomllib"])
    with instrumented:
        from fuzz.seeds import SEEDS
        from fuzz.targets import TARGETS
    with tempfile.TemporaryDirectory() as corpus:
        for index, data in enumerate(SEEDS[name]()):
            pathlib.Path(corpus, f"seed-{index}").write_bytes(data)
        options = [
            f"-max_total_time={seconds}",
            f"-seed={seed}",
            f"-timeout={HANG_S}",
            f"-max_len={MAX_INPUT_BYTES}",
            f"-artifact_prefix={out}/{name}-",
            "-print_final_stats=1",
            "-rss_limit_mb=0",  # RLIMIT_AS does that, exactly
            "-verbosity=1",
        ]
        atheris.Setup([sys.argv[0], *options, corpus], TARGETS[name])
        limit_memory(ROOM_BYTES)
        atheris.Fuzz()  # ends the process
    return 0


if __name__ == "__main__":
    words = sys.argv[1:]
    os.nice(10)
    sys.exit(main(words[0], int(words[1]), int(words[2]), words[3], pathlib.Path(words[4])))
