"""The product's nouns as values: events, positions, connection strings, quotas and errors; and its version.

Nothing here does I/O, reads a clock or knows a protocol; every other package may import it.
"""

try:
    from tidegate._version import VERSION as VERSION
except ModuleNotFoundError:  # a checkout that was never installed: the build writes it, from the tag
    VERSION = "0.0.0"
"""``tidegate.__version__`` repeats it; our own code imports it from here, below all other packages."""
