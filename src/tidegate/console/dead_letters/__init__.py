"""``/dead-letters``: finds, counts, redrives and discards dead letters."""
