"""``tidegate hub``, ``send`` and ``receive`` against a real service."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid

import pytest
from tests.cli.support import COMMAND, Result, run_on_terminal, run_tidegate

pytestmark = pytest.mark.usefixtures("forked_python")


@pytest.fixture
def hub(environment: dict[str, str]) -> str:
    """A hub with two partitions, made by the command itself."""
    name = f"cli-{uuid.uuid4().hex[:8]}"
    made = run_tidegate("hub", "create", name, "--partitions", "2", environment=environment)
    assert made.code == 0, made.err
    return name


def _send(hub: str, *options: str, lines: str, environment: dict[str, str]) -> Result:
    return run_tidegate("send", hub, *options, environment=environment, input_bytes=lines.encode())


def _receive(hub: str, *options: str, environment: dict[str, str]) -> list[dict[str, object]]:
    found = run_tidegate("receive", hub, "--no-follow", "--nl", *options, environment=environment)
    assert found.code == 0, found.err
    return [json.loads(line) for line in found.out.splitlines()]


def test_consumer_groups(hub: str, environment: dict[str, str]) -> None:
    """A group's life; `$Default` is always there and stays; wrong names are one line and exit code 1."""
    made = run_tidegate("group", "create", hub, "reports", environment=environment)
    assert (made.code, made.out) == (0, "")
    listed = run_tidegate("group", "list", hub, "--json", environment=environment).json()
    assert [found["consumer_group"] for found in listed] == ["$Default", "reports"]  # type: ignore[attr-defined]
    assert run_tidegate("group", "create", hub, "Reports", environment=environment).code == 1
    assert run_tidegate("group", "delete", hub, "reports", environment=environment).code == 0
    refused = run_tidegate("group", "delete", hub, "$Default", environment=environment)
    assert refused.code != 0
    assert "cannot be deleted" in refused.err
    assert run_tidegate("group", "list", "no-such-hub", environment=environment).code == 1


def test_create_list_show_delete(environment: dict[str, str]) -> None:
    """A hub's life: made with what was asked, listed, shown partition by partition, gone."""
    made = run_tidegate(
        "hub",
        "create",
        "Lifetime",
        "--partitions",
        "3",
        "--retention-hours",
        "24",
        "--json",
        environment=environment,
    )
    assert made.code == 0, made.err
    record = made.json()
    assert isinstance(record, dict)
    assert (record["name"], record["partitions"], record["retention_hours"]) == ("Lifetime", 3, 24)
    listed = run_tidegate("hub", "list", "--json", environment=environment).json()
    assert record in list(listed)  # type: ignore[call-overload]
    shown = run_tidegate("hub", "show", "lifetime", "--json", environment=environment).json()
    assert [partition["events"] for partition in shown] == [0, 0, 0]  # type: ignore[attr-defined]
    assert run_tidegate("hub", "create", "lifetime", environment=environment).code == 1
    assert run_tidegate("hub", "delete", "Lifetime", environment=environment).code == 0
    gone = run_tidegate("hub", "show", "Lifetime", environment=environment)
    assert gone.code == 1
    assert "lifetime" in gone.err.lower()


def test_what_is_sent_is_received(hub: str, environment: dict[str, str]) -> None:
    """Lines come back byte for byte with their keys, in order within their partition; empty lines do not."""
    lines = [json.dumps({"device": f"d{number % 3}", "number": number}) for number in range(200)]
    sent = _send(hub, "--key", ".device", lines="\n\n".join(lines) + "\n", environment=environment)
    assert sent.code == 0, sent.err
    assert "Sent 200 events" in sent.err
    received = _receive(hub, environment=environment)
    assert sorted(str(event["body"]) for event in received) == sorted(lines)
    for device in ("d0", "d1", "d2"):
        mine = [event for event in received if event["partition_key"] == device]
        assert len({event["partition"] for event in mine}) == 1
        numbers = [json.loads(str(event["body"]))["number"] for event in mine]
        assert numbers == sorted(numbers)
    shown = run_tidegate("hub", "show", hub, "--csv", environment=environment)
    assert sum(int(line.split(",")[1]) for line in shown.out.splitlines()[1:]) == 200


def test_receive_from_a_position(hub: str, environment: dict[str, str]) -> None:
    """@N starts at that event, --max ends it, and a partition can be chosen."""
    _send(hub, "--partition", "1", lines="\n".join("abcdef"), environment=environment)
    found = _receive(hub, "--partition", "1", "--from", "@2", "--count", "3", environment=environment)
    assert [event["body"] for event in found] == ["c", "d", "e"]
    assert [event["sequence_number"] for event in found] == [2, 3, 4]
    assert _receive(hub, "--from", "latest", environment=environment) == []
    whole = run_tidegate("receive", hub, "--no-follow", "--json", environment=environment).json()
    assert len(whole) == 6  # type: ignore[arg-type]
    assert len(_receive(hub, "--from", "1h", environment=environment)) == 6
    missing = run_tidegate("receive", hub, "--partition", "7", environment=environment)
    assert missing.code == 1
    assert "no partition '7'" in missing.err


def test_bodies_that_are_not_text(hub: str, environment: dict[str, str]) -> None:
    """Bytes that are not UTF-8 come as base64 in JSON, as they are with --body, as their number else."""
    run_tidegate("send", hub, environment=environment, input_bytes=b"\xff\x00\n")
    (event,) = _receive(hub, environment=environment)
    assert (event["body"], event["body_base64"]) == (None, "/wA=")
    raw = subprocess.run(
        [*COMMAND, "receive", hub, "--no-follow", "--body"], env=environment, capture_output=True, check=True
    )
    assert raw.stdout == b"\xff\x00\n"
    shown = run_tidegate("receive", hub, "--no-follow", environment=environment)
    assert shown.out.rstrip().endswith("\t(binary, 2 bytes)")


def test_bodies_do_not_control_a_terminal(hub: str, environment: dict[str, str]) -> None:
    """--body shows an escape sequence as text there; ends of lines and tabs are kept."""
    run_tidegate("send", hub, "--whole", environment=environment, input_bytes=b"a\tb\n\x1b]0;title\x07\xffc")
    shown = run_on_terminal("receive", hub, "--no-follow", "--body", environment=environment)
    assert "]0;title" in shown.out
    assert "\x1b]0" not in shown.out
    assert "\x07" not in shown.out
    assert "a\tb\n" in shown.out


def test_a_line_without_its_key_stops_with_its_number(hub: str, environment: dict[str, str]) -> None:
    """The lines before a bad one are sent and counted; the bad one is named; nothing after it is sent."""
    lines = '{"id": "a"}\n{"id": "b"}\n{"no": 1}\n{"id": "c"}\n'
    failed = _send(hub, "--key", ".id", lines=lines, environment=environment)
    assert failed.code == 2
    assert "Line 3" in failed.err
    assert "Sent 2 events" in failed.err
    assert len(_receive(hub, environment=environment)) == 2


def test_a_tail_shows_events_as_they_come_and_ends_well(hub: str, environment: dict[str, str]) -> None:
    """A running tail prints an event soon after it was sent, and Ctrl-C is its ordinary end."""
    with subprocess.Popen(
        [*COMMAND, "receive", hub, "--nl"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        for word in ("one", "two"):
            assert _send(hub, lines=word, environment=environment).code == 0
            assert json.loads(tail.stdout.readline())["body"] == word
        tail.send_signal(signal.SIGINT)
        assert tail.wait(60) == 0
        assert b"Stopped after 2 events" in tail.stderr.read()


def test_send_follows_a_pipe_that_stays_open(hub: str, environment: dict[str, str]) -> None:
    """A line is sent when it is there, not when the pipe ends; SIGTERM keeps what was read."""
    with subprocess.Popen(
        [*COMMAND, "send", hub], env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as sender:
        assert sender.stdin is not None
        assert sender.stderr is not None
        sender.stdin.write(b"early\n")
        sender.stdin.flush()
        found = run_tidegate("receive", hub, "--count", "1", "--body", environment=environment)
        assert found.out == "early\n"
        sender.send_signal(signal.SIGTERM)
        assert sender.wait(60) == 128 + signal.SIGTERM
        assert b"Sent 1 event " in sender.stderr.read()


def test_a_wrong_key_is_not_let_in(hub: str, environment: dict[str, str]) -> None:
    """A wrong key is exit code 3 at once, without retries."""
    name, _, rest = environment["TIDEGATE_CONNECTION_STRING"].partition("SharedAccessKey=")
    wrong = name + "SharedAccessKey=wrong;" + rest.partition(";")[2]
    started = time.monotonic()
    found = run_tidegate("hub", "show", hub, "--connection-string", wrong, environment=environment)
    assert found.code == 3, found.err
    assert time.monotonic() - started < 15
