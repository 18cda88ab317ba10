"""First programs of each SDK.

They read the connection string from TIDEGATE_CONNECTION_STRING, so that no key is in code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Snippet:
    """A program, with the package that it needs."""

    sdk: str
    install: str
    """The command that installs its package, or the package; empty: who runs the service has it."""
    send: str
    receive: str
    is_tried: bool = True
    """Whether that SDK is part of our tests."""


def snippets_for(hub: str, *, is_in_string: bool) -> list[Snippet]:
    """The programs, for an event hub. Its name has nothing that a string literal would need escaped.

    is_in_string: the connection string names the hub: Go's SDK then refuses to be given it as well
    (azeventhubs 2.0.2).
    """

    def filled(text: str) -> str:
        return text.replace("APART", "" if is_in_string else hub).replace("HUB", hub).strip("\n")

    return [
        Snippet(each.sdk, each.install, filled(each.send), filled(each.receive), each.is_tried)
        for each in _SNIPPETS
    ]


_SNIPPETS: Final = (
    Snippet(
        "tidegate",
        "",
        """
echo '{"device": "a1", "celsius": 21.5}' | tidegate send HUB
""",
        """
tidegate receive HUB
""",
    ),
    Snippet(
        "Python",
        "pip install azure-eventhub",
        """
import os
from azure.eventhub import EventData, EventHubProducerClient

connection_string = os.environ["TIDEGATE_CONNECTION_STRING"]
with EventHubProducerClient.from_connection_string(connection_string, eventhub_name="HUB") as producer:
    producer.send_batch([EventData('{"device": "a1", "celsius": 21.5}')])
""",
        """
import os
from contextlib import suppress
from azure.eventhub import EventHubConsumerClient

connection_string = os.environ["TIDEGATE_CONNECTION_STRING"]
consumer = EventHubConsumerClient.from_connection_string(connection_string, "$Default", eventhub_name="HUB")
with suppress(KeyboardInterrupt), consumer:  # until Ctrl-C
    consumer.receive(lambda partition, event: print(event.body_as_str()), starting_position="-1")
""",
    ),
    Snippet(
        "JavaScript",
        "npm install @azure/event-hubs",
        """
import { EventHubProducerClient } from "@azure/event-hubs";

const producer = new EventHubProducerClient(process.env.TIDEGATE_CONNECTION_STRING, "HUB");
await producer.sendBatch([{ body: { device: "a1", celsius: 21.5 } }]);
await producer.close();
""",
        """
import { earliestEventPosition, EventHubConsumerClient } from "@azure/event-hubs";

const consumer = new EventHubConsumerClient("$Default", process.env.TIDEGATE_CONNECTION_STRING, "HUB");
consumer.subscribe({
  processEvents: async (events) => events.forEach((event) => console.log(event.body)),
  processError: async (error) => console.error(error),
}, { startPosition: earliestEventPosition });
""",
    ),
    Snippet(
        "Java",
        "com.azure:azure-messaging-eventhubs",
        """
import com.azure.messaging.eventhubs.*;
import java.util.List;

public class Send {
    public static void main(String[] arguments) {
        try (EventHubProducerClient producer = new EventHubClientBuilder()
                .connectionString(System.getenv("TIDEGATE_CONNECTION_STRING"), "HUB").buildProducerClient()) {
            producer.send(List.of(new EventData("{\\"device\\": \\"a1\\", \\"celsius\\": 21.5}")));
        }
    }
}
""",
        """
import com.azure.messaging.eventhubs.*;

public class Receive {
    public static void main(String[] arguments) throws InterruptedException {
        new EventHubClientBuilder()
            .connectionString(System.getenv("TIDEGATE_CONNECTION_STRING"), "HUB").consumerGroup("$Default")
            .buildAsyncConsumerClient().receive(true)
            .subscribe(event -> System.out.println(event.getData().getBodyAsString()));
        Thread.currentThread().join();
    }
}
""",
    ),
    Snippet(
        "Go",
        "go get github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2",
        """
package main

import (
    "context"
    "log"
    "os"

    "github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
)

func main() {
    ctx := context.Background()
    producer, err := azeventhubs.NewProducerClientFromConnectionString(
        os.Getenv("TIDEGATE_CONNECTION_STRING"), "APART", nil)
    check(err)
    defer producer.Close(ctx)
    batch, err := producer.NewEventDataBatch(ctx, nil)
    check(err)
    event := &azeventhubs.EventData{Body: []byte(`{"device": "a1", "celsius": 21.5}`)}
    check(batch.AddEventData(event, nil))
    check(producer.SendEventDataBatch(ctx, batch, nil))
}

func check(err error) {
    if err != nil {
        log.Fatal(err)
    }
}
""",
        """
package main

import (
    "context"
    "fmt"
    "log"
    "os"

    "github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
)

func main() {
    ctx, earliest := context.Background(), true
    consumer, err := azeventhubs.NewConsumerClientFromConnectionString(
        os.Getenv("TIDEGATE_CONNECTION_STRING"), "APART", azeventhubs.DefaultConsumerGroup, nil)
    check(err)
    defer consumer.Close(ctx)
    partition, err := consumer.NewPartitionClient("0", &azeventhubs.PartitionClientOptions{
        StartPosition: azeventhubs.StartPosition{Earliest: &earliest},
    })
    check(err)
    for {
        events, err := partition.ReceiveEvents(ctx, 1, nil)
        check(err)
        for _, event := range events {
            fmt.Println(string(event.Body))
        }
    }
}

func check(err error) {
    if err != nil {
        log.Fatal(err)
    }
}
""",
    ),
    Snippet(
        ".NET",
        "dotnet add package Azure.Messaging.EventHubs",
        """
using Azure.Messaging.EventHubs;
using Azure.Messaging.EventHubs.Producer;

var connectionString = Environment.GetEnvironmentVariable("TIDEGATE_CONNECTION_STRING");
await using var producer = new EventHubProducerClient(connectionString, "HUB");
await producer.SendAsync(new[] { new EventData("{\\"device\\": \\"a1\\", \\"celsius\\": 21.5}") });
""",
        """
using Azure.Messaging.EventHubs.Consumer;

var connectionString = Environment.GetEnvironmentVariable("TIDEGATE_CONNECTION_STRING");
await using var consumer = new EventHubConsumerClient("$Default", connectionString, "HUB");
await foreach (var received in consumer.ReadEventsAsync())
    Console.WriteLine(received.Data.EventBody);
""",
        is_tried=False,
    ),
)
