"""Which operating-system errors mean that the disk is full, and nothing else is wrong."""

from __future__ import annotations

import errno
from typing import Final

_FULL_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full_error(error: OSError) -> bool:
    """Whether the write failed for lack of room: no space, over quota, or beyond the file size limit."""
    return error.errno in _FULL_ERRORS
