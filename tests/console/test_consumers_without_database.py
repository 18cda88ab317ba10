"""Consumers in the console of a service without a database: those that official processors keep in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.console.processing_support import append, keep_official_group, text_of
from tests.console.support import PlainBrowser, console_service

from tidegate.broker import Broker, EventHub, KeptGroup
from tidegate.console.consumers import groups as consumers
from tidegate.console.consumers import kept
from tidegate.console.consumers import page as consumers_page
from tidegate.console.frame import shared_answers
from tidegate.console.overview import page as overview_page
from tidegate.processor.group_view import GroupView
from tidegate.testing.hub import HubService


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubService]:
    """Nothing that it has read is kept for the next page, and a page waits for what is read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers, "_LOOK_S", 0.0)
        patch.setattr(shared_answers, "WORK_SHARE", 0)
        patch.setattr(consumers_page, "FIRST_PAINT_S", 30.0)
        patch.setattr(overview_page, "_PATIENCE_S", 30.0)
        patch.setattr(overview_page, "_PROCESSING_S", 0.0)
        with console_service(tmp_path_factory.mktemp("console")) as started:
            yield started


@pytest.mark.slow
def test_groups_that_the_service_keeps_are_shown(
    service: HubService, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With owner and lag; the page says that hosts and pipelines are not among them, and how to see them.

    A group that there is not costs nothing: asking for many of them kept others waiting for a second.
    """
    read, view = list[str](), kept._view

    def noted(broker: Broker, hub: EventHub, group: KeptGroup) -> GroupView:
        read.append(group.consumer_group)
        return view(broker, hub, group)

    monkeypatch.setattr(kept, "_view", noted)
    empty = plain_browser.get("/consumers")
    assert (empty.status, "tidegate hub create NAME" in empty.text) == (200, True)
    hub = service.create_hub("official-hub", partition_count=2)
    append(service, hub, [b"x"] * 10, partition_id="0")
    unread = plain_browser.get("/consumers").text
    assert f"{hub} $Default no reader yet 2 – – 10 –" in text_of(unread)
    assert "tidegate serve --database URL" in unread
    assert "no consumer group keeps a checkpoint" in text_of(plain_browser.get("/").text)
    keep_official_group(service, hub)
    listed = plain_browser.get("/consumers").text
    assert f"{hub} official" in text_of(listed)
    one = plain_browser.get(f"/consumers/{hub}/official").text
    assert "0 behind official-1" in text_of(one)
    assert "official of official-hub, 6 events" in text_of(plain_browser.get("/").text)
    read.clear()
    assert (plain_browser.get(f"/consumers/{hub}/nobody").status, read) == (404, [])
    for group, words in (("official", "keeps its checkpoints in the service"), ("other", "no database")):
        assert words in plain_browser.get(f"/consumers/{hub}/{group}/move?to=latest").text


def test_dead_letters_need_the_database(plain_browser: PlainBrowser) -> None:
    """The page says so, and how to give one."""
    answer = plain_browser.get("/dead-letters")
    assert (answer.status, "tidegate serve --database" in answer.text) == (200, True)
    assert plain_browser.get("/dead-letters/x/y/0/1").status == 404
