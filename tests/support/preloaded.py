"""What the command line imports while commands run; ``forked`` has it imported before it forks them."""

from __future__ import annotations

import gc
import zoneinfo as zoneinfo

import uvloop as uvloop

import tidegate.cli.app
import tidegate.cli.service.serve
import tidegate.client
import tidegate.processor
import tidegate.server.app
import tidegate.sql

for package in (tidegate.client, tidegate.processor, tidegate.sql):
    for name in package.__all__:
        getattr(package, name)  # a package may import what a name stands for only when it is asked for

gc.collect()
gc.freeze()  # a child that collects would copy every page of what is here
