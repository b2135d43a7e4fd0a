"""Arguments of environments as text: `game=Pong`, `delay=20`, `episodic_life=false`.

A value is written as in TOML. A plain word needs no quotes, so that nothing has to be hidden from a shell.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from clusterenv.errors import ConfigError
from clusterenv.learners.common import toml

if TYPE_CHECKING:
    from collections.abc import Sequence

# What `make_vec` asks for by itself; as arguments of an environment they would mean something else than they say.
RESERVED = frozenset(
    {
        *("id", "num_envs", "vectorization_mode", "vector_kwargs", "wrappers", "cluster", "on_loss", "timeouts"),
        *("infos", "slot_kwargs"),
    }
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./:-]*")
# Words that somebody who thinks in Python would write; as texts they would be taken for true.
_PYTHON = {"True": "true", "False": "false", "None": None}


def parse_env_args(arguments: Sequence[str], where: str = "env_args") -> dict[str, Any]:
    """The keyword arguments of an environment.

    Args:
        arguments: each "name=value". A value is a number, true or false, a word, a "text in quotes", [a, list] or
            {a = "table"}.
        where: they were given, for messages.

    Raises:
        ConfigError: one cannot be read, or has a name that is no environment's business.

    Example:
        >>> parse_env_args(["game=Pong", "noop_max=10", "episodic_life=false", 'title="two words"'])
        {'game': 'Pong', 'noop_max': 10, 'episodic_life': False, 'title': 'two words'}
    """
    found: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise ConfigError(f"{where} has {argument!r}, which is not name=value, such as delay=20 or game=Pong.")
        if name in RESERVED:
            raise ConfigError(
                f"{where} has {argument!r}, but {name} is not an argument of the environment. Settings have their own "
                "names: num_envs, cluster, last_inputs."
            )
        if name in found:
            raise ConfigError(f"{where} has {name!r} twice: {found[name]!r} and {text.strip()!r}. Leave one out.")
        found[name] = _value(name, text.strip(), where)
    return found


def _value(name: str, text: str, where: str) -> Any:
    if text in _PYTHON:
        meant = _PYTHON[text]
        hint = f"Write {name}={meant}" if meant else "There is no such value: leave the argument out"
        raise ConfigError(f"{where} has {name}={text}. {hint}; for the text, put it in quotes: {name}='\"{text}\"'.")
    try:
        table = toml.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:  # a ValueError: no TOML, or a number too long
        if _WORD.fullmatch(text):
            return text
        raise ConfigError(
            f"{where} has {name}={text!r}, which is neither a word nor a value as in TOML ({error}). Texts that are "
            f"more than a word need quotes twice, for the shell and for TOML: {name}='\"two words\"'."
        ) from error
    if table.keys() != {"value"} or not _plain(table["value"]):
        raise ConfigError(
            f"{where} has {name}={text!r}, which must be one number, boolean, text, list or table. Dates are none of "
            "these: put them in quotes."
        )
    return table["value"]


def _plain(value: Any) -> bool:
    """Whether it can travel to any host: TOML has dates too."""
    if isinstance(value, list):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(map(_plain, value.values()))
    return isinstance(value, (bool, int, float, str))


# Names that end so are those of secrets; token_file and max_tokens are not.
_SECRET = re.compile(r"(.*_)?(secret|password|passwd|passphrase|token|credentials?|(api|access|private|secret)_?key)")


def secrets_among(arguments: Sequence[str]) -> list[str]:
    """The names of arguments that seem to be secrets.

    Example:
        >>> secrets_among(["API_KEY=abc", "token_file=/etc/token", "game=Pong"])
        ['API_KEY']
    """
    names = [argument.partition("=")[0].strip() for argument in arguments]
    return [name for name in names if _SECRET.fullmatch(name.lower())]
