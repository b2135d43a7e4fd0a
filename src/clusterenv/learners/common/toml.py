"""Reading TOML, which Python itself does since 3.11."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from tomllib import loads
else:  # the same library, before it joined Python
    from tomli import loads

__all__ = ["loads"]
