"""``/``: how the whole service is doing."""
