"""The product's nouns as values: events, positions, connection strings, quotas and errors; and its version.

Nothing here does I/O, reads a clock or knows a protocol; every other package may import it.
"""

from typing import Final

VERSION: Final = "0.1.0"
"""``tidegate.__version__`` repeats it; our own code imports it from here, below all other packages."""
