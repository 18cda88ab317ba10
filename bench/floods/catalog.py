"""All floods, in the order of the issue's points."""

from __future__ import annotations

from typing import Final

from bench.floods import anonymous, blobs, letters, pages, tenants, web
from bench.floods.attack import Flood

FLOODS: Final[tuple[Flood, ...]] = tuple(
    sorted(
        (*anonymous.FLOODS, *tenants.FLOODS, *web.FLOODS, *blobs.FLOODS, *letters.FLOODS, *pages.FLOODS),
        key=lambda flood: flood.item,
    )
)
