"""The product's nouns as values: events, positions, connection strings, quotas and errors.

Nothing here does I/O, reads a clock or knows a protocol; every other package may import it.
"""
