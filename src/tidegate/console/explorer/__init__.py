"""``/hubs/HUB/explorer``: events read, searched, followed and sent."""
