"""The durable partition log: opaque events in checksummed batches, acknowledged once they are on the disk.

Storage knows bytes and sequence numbers, no event, hub rule or protocol. ``LogManager`` owns a data
directory; ``check.check_log_directory`` verifies and repairs one that no service runs on.
"""
