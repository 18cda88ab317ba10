"""``/console/jobs``: long work that pages start, with progress."""
