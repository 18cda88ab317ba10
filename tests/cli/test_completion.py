"""Shell completion: what a real shell is offered, and that a service that is away keeps nobody waiting."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.support import run_tidegate
from tests.support.forked import forking_program

from tidegate.testing.hub import HubService

WAIT_S = 60.0


@pytest.fixture
def shell_environment(environment: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """The service's environment with the ``tidegate`` of these sources on PATH."""
    program = tmp_path / "bin" / "tidegate"
    program.parent.mkdir()
    with forking_program(program, "-m", "tidegate.cli"):
        yield environment | {"PATH": f"{program.parent}{os.pathsep}{environment['PATH']}"}


def offered(line: str, environment: dict[str, str]) -> list[str]:
    """What bash offers when the tabulator is pressed at the end of ``line``."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("NOT TESTED WITH BASH: there is none.")
    words = line.split(" ")
    script = (
        "source <(tidegate completion bash)\n"
        f"COMP_WORDS=({' '.join(map(shlex.quote, words))})\n"
        f"COMP_CWORD={len(words) - 1}\n"
        # The name of the function is the fifth word of: complete -o default -F NAME tidegate
        "registered=($(complete -p tidegate))\n"
        "${registered[4]} tidegate\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    found = subprocess.run(
        [bash, "--norc", "-c", script], env=environment, capture_output=True, timeout=WAIT_S, check=True
    )
    assert not found.stderr, found.stderr.decode()
    return found.stdout.decode().split()


@pytest.mark.slow
def test_commands_and_options(shell_environment: dict[str, str]) -> None:
    """Commands, commands of groups, and options are completed from the program itself."""
    assert offered("tidegate co", shell_environment) == ["completion"]
    assert offered("tidegate hub d", shell_environment) == ["delete"]
    assert offered("tidegate hub list --c", shell_environment) == [
        "--connection-string",
        "--ca-file",
        "--csv",
    ]


@pytest.mark.slow
def test_names_of_the_service(shell_environment: dict[str, str], hub_service: HubService) -> None:
    """Hubs, their groups and policies are asked of the service that the command would talk to."""
    hub = hub_service.create_hub("completion-hub")
    made = run_tidegate("group", "create", hub, "analytics", environment=shell_environment)
    assert made.code == 0, made.err
    shell_environment = shell_environment | {"_TIDEGATE_COMPLETION_S": str(WAIT_S / 2)}
    for command in ("hub show", "receive", "send"):
        assert offered(f"tidegate {command} completion-h", shell_environment) == [hub], command
    assert offered(f"tidegate receive {hub} --group a", shell_environment) == ["analytics"]
    assert offered(f"tidegate group delete {hub} a", shell_environment) == ["analytics"]
    assert offered("tidegate policy show Root", shell_environment) == ["RootManageSharedAccessKey"]


@pytest.mark.slow
def test_names_of_this_machine(shell_environment: dict[str, str]) -> None:
    """Profiles are completed without any service."""
    string = shell_environment["TIDEGATE_CONNECTION_STRING"].encode()
    saved = run_tidegate("profile", "save", "mine", environment=shell_environment, input_bytes=string)
    assert saved.code == 0, saved.err
    assert offered("tidegate tier show --profile m", shell_environment) == ["mine"]
    assert offered("tidegate profile use ", shell_environment) == ["mine"]


@pytest.mark.slow
def test_a_service_that_is_away_completes_nothing(shell_environment: dict[str, str]) -> None:
    """Nothing is offered, nothing is said, and the prompt comes back."""
    string = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=x;SharedAccessKey=s;UseDevelopmentEmulator=true"
    assert offered("tidegate receive a", shell_environment | {"TIDEGATE_CONNECTION_STRING": string}) == []
    assert offered("tidegate receive --profile no a", shell_environment) == []
    nowhere = {k: v for k, v in shell_environment.items() if k != "TIDEGATE_CONNECTION_STRING"}
    assert offered("tidegate receive a", nowhere) == []


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str, lonely: dict[str, str]) -> None:
    """The script names the program; what it then asks is answered in the shell's own way."""
    found = run_tidegate("completion", shell, environment=lonely)
    assert found.code == 0
    assert "_TIDEGATE_COMPLETE" in found.out
    asked = lonely | {
        "_TIDEGATE_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "tidegate hub sh",
        "COMP_CWORD": "sh" if shell == "fish" else "2",
    }
    answer = run_tidegate(environment=asked)
    assert answer.code == 0
    assert "show" in answer.out
