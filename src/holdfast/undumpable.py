"""No core dump of this process, and no other process of this user reads its memory: keys are in it."""

from __future__ import annotations

import ctypes
import resource
from typing import Final

PR_SET_DUMPABLE: Final = 4  # linux/prctl.h


def forbid_core_dumps() -> str:
    """Why it could not be done; empty: it was."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            return f"prctl failed with error {ctypes.get_errno()}"
    except (OSError, ValueError, AttributeError) as error:
        return str(error)
    return ""
