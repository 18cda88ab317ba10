"""The programs that the console shows for a policy send an event and receive it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from tests.interop.node import FOLDER

from tidegate.console.keys.snippets import Snippet, snippets_for
from tidegate.model.connection_string import ConnectionString
from tidegate.testing.hub import HubService


def _command(sdk: str, program: str) -> Sequence[str]:
    if sdk == "tidegate":
        return "sh", "-c", program.replace("tidegate ", f"{sys.executable} -m tidegate.cli ")
    if sdk == "Python":
        return sys.executable, "-u", "-c", program
    return "node", "--input-type=module", "--eval", program


@pytest.mark.slow
@pytest.mark.parametrize("is_in_string", [False, True])
@pytest.mark.parametrize("sdk", ["tidegate", "Python", "JavaScript"])
def test_an_event_is_sent_and_received(
    hub_service: HubService, javascript: object, sdk: str, is_in_string: bool
) -> None:
    """As copied, with the string of a namespace's policy and of a hub's."""
    hub = hub_service.create_hub(partition_count=1)
    string = ConnectionString.parse(hub_service.connection_string)
    environment = os.environ | {
        "TIDEGATE_CONNECTION_STRING": (string.with_entity_path(hub) if is_in_string else string).format()
    }
    found = snippets_for(hub, is_in_string=is_in_string)
    snippet: Snippet = next(each for each in found if each.sdk == sdk)
    subprocess.run(_command(sdk, snippet.send), env=environment, cwd=FOLDER, check=True, timeout=120)
    with subprocess.Popen(
        _command(sdk, snippet.receive), env=environment, cwd=FOLDER, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert any("a1" in line and "21.5" in line for line in process.stdout)
        finally:
            process.kill()
