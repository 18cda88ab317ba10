"""``/``: the state of the whole service."""
