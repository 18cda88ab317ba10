"""``/console/about``: version, parts of others, and shortcuts."""
