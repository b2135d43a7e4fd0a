"""JSON for machines, one object per line."""

from __future__ import annotations

import json
import math
from typing import Any


def json_line(content: Any) -> str:
    """As JSON, which knows no NaN and nothing infinite: they become null.

    Example:
        >>> json_line({"final_return": math.nan, "steps": 64})
        '{"final_return": null, "steps": 64}'
    """
    return json.dumps(_finite(content), allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
