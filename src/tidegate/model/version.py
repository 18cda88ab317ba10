"""The product's version, which ``tidegate.__version__`` repeats.

Code of the product takes it from here: ``tidegate`` itself names packages of every layer.
"""

from typing import Final

VERSION: Final = "0.1.0"
