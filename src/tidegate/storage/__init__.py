"""The durable partition log: opaque events in checksummed batches, acknowledged once they are on disk.

Storage handles bytes and sequence numbers; it knows no event format, hub rule or protocol. ``engine`` says
what the broker needs. ``LogManager`` is the engine that owns a data directory;
``check.check_log_directory`` verifies and repairs one that no service is using.
"""
