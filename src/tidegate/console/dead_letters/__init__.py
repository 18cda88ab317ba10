"""``/dead-letters``: found, counted, redriven and discarded."""
