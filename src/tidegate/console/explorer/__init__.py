"""``/hubs/HUB/explorer``: reads, searches, follows and sends events."""
