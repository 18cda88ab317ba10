"""``/console/search``: finds what has a page by its name."""
