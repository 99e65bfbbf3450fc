"""Objects of the user's that save and load a state of their own, as torchdata's `Stateful` does."""

from __future__ import annotations

import inspect
from typing import Any


def has_state(item: Any) -> bool:
    """Whether `item` has `state_dict` and `load_state_dict`. Looked at as they lie there: nothing
    of the user's is called."""
    return is_there(item, "state_dict") and is_there(item, "load_state_dict")


def is_there(item: Any, method: str) -> bool:
    return inspect.getattr_static(item, method, None) is not None
