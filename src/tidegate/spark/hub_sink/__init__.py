"""The sink of the format ``eventhubs``: rows become events."""
