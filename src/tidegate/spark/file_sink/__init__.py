"""The sink of the format ``eventhubs-files``: writes each row once to Parquet or JSON files."""
