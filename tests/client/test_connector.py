"""One connection per client: made once, authorized once per audience, renewed, and mended."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.client.fake_service import FakeService, until

from tidegate.client import EventHubConsumer, EventHubProducer, Namespace, RetryPolicy, SharedKeyCredential
from tidegate.client.connector import AuthorizedConnection, Connector
from tidegate.model.errors import (
    BrokenError,
    ClosedError,
    ConnectionStringError,
    InvalidArgumentError,
    NotFoundError,
    OperationTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)
from tidegate.model.position import EventPosition

QUICK = RetryPolicy(retries_max=3, delay_s=0.001, delay_s_max=0.002)


def _namespace(service: FakeService, *, token_lifetime_s: int = 3600) -> Namespace:
    credential = SharedKeyCredential("p", "k", token_lifetime_s=token_lifetime_s)
    return Namespace.from_credential(
        "127.0.0.1", credential, port=service.port, use_tls=False, retry=QUICK, timeout_s=5.0
    )


async def test_many_callers_share_one_connection() -> None:
    """Whoever comes while it is being made waits for it; one token per audience."""
    async with FakeService() as service, EventHubConsumer(_namespace(service), "hub") as consumer:
        await asyncio.gather(*(consumer.get_partition_properties("0") for _ in range(20)))
        receivers = [consumer.open_receiver(each, EventPosition.earliest()) for each in ("0", "1")]
        await asyncio.gather(*receivers)
        assert service.connection_count == 1
        assert [token.audience for token in service.tokens] == [
            "sb://127.0.0.1/hub",
            "sb://127.0.0.1/hub/consumergroups/$Default",
        ]


@pytest.mark.slow
async def test_tokens_are_renewed_before_they_end() -> None:
    """A token of a second is put again on the same connection."""
    async with FakeService() as service:
        namespace = _namespace(service, token_lifetime_s=1)
        async with EventHubConsumer(namespace, "hub") as consumer:
            await consumer.get_event_hub_properties()
            await until(lambda: len(service.tokens) >= 2)
            assert service.connection_count == 1
            assert len({token.token for token in service.tokens}) == 2


@pytest.mark.slow
async def test_a_refused_renewal_ends_the_receivers() -> None:
    """A key that was changed meanwhile reaches those who receive, as what it is."""
    async with FakeService() as service:
        namespace = _namespace(service, token_lifetime_s=1)
        async with EventHubConsumer(namespace, "hub") as consumer:
            receiver = await consumer.open_receiver("0", EventPosition.earliest())
            service.token_error = UnauthorizedError("the key was changed")
            with pytest.raises(UnauthorizedError, match="key was changed"):
                await receiver.receive(max_wait_s=10.0)


async def test_passing_errors_are_tried_again_as_often_as_the_policy_says() -> None:
    """Three retries after the first try, then the error itself."""
    async with FakeService() as service:
        connector = Connector(_namespace(service))
        tries = 0

        async def fail(authorized: AuthorizedConnection) -> None:
            nonlocal tries
            tries += 1
            raise BrokenError("again")

        with pytest.raises(BrokenError, match="again"):
            await connector.run("a test", fail)
        assert tries == 4

        async def refuse(authorized: AuthorizedConnection) -> None:
            nonlocal tries
            tries += 1
            raise NotFoundError("no")

        with pytest.raises(NotFoundError):
            await connector.run("a test", refuse)
        assert tries == 5
        await connector.close()
        with pytest.raises(ClosedError):
            await connector.run("a test", fail)


async def test_a_seeded_program_keeps_its_own_numbers() -> None:
    """The jitter is not drawn from the generator that the program may have seeded."""
    async with FakeService() as service:
        connector = Connector(_namespace(service))
        state = random.getstate()
        await connector.wait_before_retry(1, ServerBusyError("busy"))
        assert random.getstate() == state
        await connector.close()


async def test_each_try_has_a_deadline() -> None:
    """An operation that never ends is a time-out that names it, and the line is replaced."""
    async with FakeService() as service:
        namespace = Namespace.from_connection_string(
            service.connection_string, retry=RetryPolicy(retries_max=0), timeout_s=0.05
        )
        connector = Connector(namespace)
        await connector.connected()

        async def hang(authorized: AuthorizedConnection) -> None:
            await asyncio.Event().wait()

        with pytest.raises(OperationTimeoutError, match="the hanging test"):
            await connector.run("the hanging test", hang)
        await connector.connected()
        assert service.connection_count == 2
        await connector.close()


async def test_a_cancelled_start_leaves_the_client_usable() -> None:
    """Cancelling the first call, at whatever moment, does not spoil the next."""
    async with FakeService() as service, EventHubProducer(_namespace(service), "hub") as producer:
        for delay_s in (0.0, 0.001, 0.002, 0.005):
            try:
                async with asyncio.timeout(delay_s):
                    await producer.start()
            except TimeoutError:
                pass
        await producer.start()
        assert (await producer.get_event_hub_properties()).partition_ids == ("0", "1")


async def test_credentials_of_other_kinds_are_adapted() -> None:
    """An azure-identity credential is used as it is; its token goes out as a JSON web token."""

    class AccessToken:
        token = "ey.j.w"
        expires_on = 4_102_444_800

    class Identity:
        async def get_token(self, *scopes: str) -> AccessToken:
            return AccessToken()

    async with FakeService() as service:
        namespace = Namespace.from_credential("127.0.0.1", Identity(), port=service.port, use_tls=False)
        async with EventHubConsumer(namespace, "hub") as consumer:
            await consumer.get_event_hub_properties()
        (token,) = service.tokens
        assert (token.token, token.token_type) == ("ey.j.w", "jwt")


@pytest.mark.slow
def test_bad_options_are_refused() -> None:
    """No hub, no time, two ways to trust, a CA file that is none: said before anything connects."""
    string = "Endpoint=sb://h/;SharedAccessKeyName=p;SharedAccessKey=k"
    with pytest.raises(ConnectionStringError, match="No event hub"):
        EventHubConsumer.from_connection_string(string)
    with pytest.raises(InvalidArgumentError, match="timeout_s must be greater than 0"):
        Namespace.from_connection_string(string, timeout_s=0)
    with pytest.raises(InvalidArgumentError, match="Cannot use the certificate file"):
        Namespace.from_connection_string(string, ca_file=__file__)
    context = Namespace.from_connection_string(string).ssl_context
    assert context is not None
    with pytest.raises(InvalidArgumentError, match="not both"):
        Namespace.from_connection_string(string, ssl_context=context, ca_file="x")
    assert "SharedAccessKey" not in repr(Namespace.from_connection_string(string))


def test_default_ports_follow_tls() -> None:
    """5671 with TLS, 5672 without, as the official clients have it."""
    string = "Endpoint=sb://h/;SharedAccessKeyName=p;SharedAccessKey=k"
    assert Namespace.from_connection_string(string).port == 5671
    plain = Namespace.from_connection_string(string + ";UseDevelopmentEmulator=true")
    assert (plain.port, plain.ssl_context) == (5672, None)
    assert Namespace.from_credential("h", SharedKeyCredential("p", "k")).port == 5671
