"""Warnings that name the user's line, not ours."""

from __future__ import annotations

import os
import sys
import warnings

import torch.utils.data

#: What the names of all files of this package begin with.
PACKAGE = os.path.dirname(__file__) + os.sep
#: What lies between the user's code and a warning: this package, and the loader that ours is.
_BETWEEN = (
    PACKAGE,
    os.path.dirname(torch.utils.data.__file__) + os.sep,
)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, at the innermost line that is neither this package's nor torch's loader's."""
    # By hand, for `skip_file_prefixes` is not there before Python 3.12.
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
