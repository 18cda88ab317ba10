"""The sink of the format ``eventhubs-files``: rows become Parquet or JSON files, each once."""
