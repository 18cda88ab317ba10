"""``/hubs``: event hubs, their settings, publishers and capture; and the rates of the namespace."""
