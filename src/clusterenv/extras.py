"""Optional libraries: imported where they are used, and a missing one is answered with the line that installs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType


def load(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional module.

    Args:
        module: its full name, for example "torch.utils.tensorboard".
        extra: the extra of clusterenv that installs it.
        purpose: what needs it, for the message: "--track", "clusterenv plot".

    Raises:
        ConfigError: it is not installed; the message has the line that installs it.

    Example:
        >>> load("json", extra="train", purpose="this example").dumps([1])
        '[1]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there and lacks one of its own is just as unusable, and its name says more.
        missing = error.name or module
        raise ConfigError(f'{purpose} needs {missing!r}. Install it: pip install "clusterenv[{extra}]"') from error
