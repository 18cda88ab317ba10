"""The product's version, which ``tidegate.__version__`` repeats.

The product's own code imports it from here, because ``tidegate`` imports from packages of every layer.
"""

from typing import Final

VERSION: Final = "0.1.0"
