"""What a machine lacks for a test: said loudly, and on a build machine an error."""

from __future__ import annotations

import os
from typing import NoReturn


def not_tested(words: str) -> NoReturn:
    """Skip the test that asks; with ``CI=true`` in the environment fail it: a build machine must have it.

    words: what is not tested, what is absent and how to come by it.
    """
    import pytest

    if os.environ.get("CI") == "true":
        pytest.fail(words)
    pytest.skip(words)
