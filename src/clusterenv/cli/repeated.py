"""Options that are given twice: the parser would take the last and say nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Those that are given once for each of their values.
_SEVERAL = ("--import",)


def refuse_repeated(arguments: Sequence[str]) -> None:
    """Refuse an option that is given twice, also if it is written in two ways, or once with `--no-`.

    Raises:
        ConfigError: with its name.

    Example:
        >>> refuse_repeated(["--seed", "1", "--num-envs=2"])
        >>> refuse_repeated(["--num-envs", "1", "--num_envs=2"])
        Traceback (most recent call last):
        clusterenv.errors.ConfigError: --num-envs is given twice. Give it once; several values stand behind one another.
    """
    seen: dict[str, str] = {}
    for argument in arguments:
        flag = argument.partition("=")[0].replace("_", "-")
        if not flag.startswith("--") or flag in _SEVERAL:
            continue
        name = flag.removeprefix("--").removeprefix("no-")
        if seen.get(name) == flag:
            raise ConfigError(f"{flag} is given twice. Give it once; several values stand behind one another.")
        if name in seen:
            raise ConfigError(f"{seen[name]} and {flag} cannot both be given. Leave one of them out.")
        seen[name] = flag
