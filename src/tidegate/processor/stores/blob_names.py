"""The name of a namespace in the names of blobs: which one official processors use, if any. Pure.

They take it from their connection string, with its port. So a service that is reached by several names and
ports has several, and nothing in a container says that they are of one service.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from tidegate.model.hosts import is_loopback
from tidegate.processor.lease import GroupKey

_logger: Final = logging.getLogger(__name__)
_USED_TOGETHER: Final = timedelta(minutes=10)
"""Names that were used within this time of each other are used at the same time (our choice: processors renew
their leases each half minute)."""


def is_same_machine(name: str, authority: str) -> bool:
    """Whether two names of services differ in the port alone, or are both of this machine."""
    hosts = [without_port(each).strip("[]") for each in (name, authority)]
    return hosts[0] == hosts[1] or all(map(is_loopback, hosts))


def chosen_name(group: GroupKey, used: Mapping[str, datetime]) -> str:
    """The name for a group: with the port of the connection string or without it, if one is used; else any
    other of the machine. Of several, the one used last. Without any, the one with the port."""
    own = [each for each in (group.authority, without_port(group.authority)) if each in used]
    return max(own or used, key=used.__getitem__, default=group.authority)


def warn_of_others(group: GroupKey, agreed: str, used: Mapping[str, datetime]) -> None:
    """Say which names processors use at present, beside the one that Tidegate's hosts have agreed on."""
    newest = max(used.values(), default=None)
    for name, used_at in used.items():
        if name != agreed and newest is not None and newest - used_at < _USED_TOGETHER:
            _logger.warning(
                "Processors use the group %s under the name %s, and hosts of Tidegate under the name %s: "
                "both process all events. Give the processors a connection string with %s, or give BlobStore "
                "fully_qualified_namespace=%r in all hosts.",
                group,
                name,
                agreed,
                agreed,
                name,
            )


def without_port(authority: str) -> str:
    """The host name alone."""
    return re.sub(r":\d+$", "", authority)
