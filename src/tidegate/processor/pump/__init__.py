"""One owned partition: sessions, batches and their delivery to the handler."""
