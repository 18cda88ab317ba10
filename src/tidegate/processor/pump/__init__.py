"""Processing of one owned partition: sessions, batches and their delivery to the handler."""
