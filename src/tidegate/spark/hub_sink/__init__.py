"""The sink of the format ``eventhubs``: sends rows as events."""
