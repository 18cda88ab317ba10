//! The event hub under test, and how the SDK reaches it over each transport.

use std::{env, error::Error};

use azure_core::time::Duration;
use azure_messaging_eventhubs::{
    models::{AmqpTransport, ReceivedEventData},
    ConsumerClient, EventReceiver, OpenReceiverOptions, ProducerClient, RetryOptions,
    SendEventOptions, StartLocation, StartPosition,
};
use futures::StreamExt;

/// Those of the hub that the suite creates.
pub const PARTITIONS: [&str; 4] = ["0", "1", "2", "3"];

pub type Found<T = ()> = Result<T, Box<dyn Error>>;

pub struct Hub {
    pub connection_string: String,
    pub name: String,
    endpoint: String,
    transport: AmqpTransport,
}

impl Hub {
    /// The SDK reads the host of a connection string and ignores the port, so the port becomes a custom endpoint.
    pub fn from_environment() -> Self {
        let connection_string = variable("TIDEGATE_CONNECTION_STRING");
        let transport = variable("TIDEGATE_TRANSPORT");
        let address = connection_string
            .split(';')
            .find_map(|part| part.strip_prefix("Endpoint=sb://"))
            .expect("an endpoint in the connection string")
            .trim_end_matches('/')
            .to_string();
        let scheme = if transport == "plain" {
            "amqp"
        } else {
            "amqps"
        };
        Self {
            name: variable("TIDEGATE_HUB"),
            endpoint: format!("{scheme}://{address}"),
            transport: match transport.as_str() {
                "websocket" => AmqpTransport::WebSocket,
                _ => AmqpTransport::Tcp,
            },
            connection_string,
        }
    }

    pub async fn producer(&self) -> Found<ProducerClient> {
        self.producer_with(&self.connection_string).await
    }

    pub async fn producer_with(&self, connection_string: &str) -> Found<ProducerClient> {
        Ok(ProducerClient::builder()
            .with_custom_endpoint(self.endpoint.clone())
            .with_transport(self.transport)
            .with_retry_options(retries())
            .open_with_connection_string(connection_string, Some(&self.name))
            .await?)
    }

    pub async fn consumer(&self) -> Found<ConsumerClient> {
        Ok(ConsumerClient::builder()
            .with_custom_endpoint(self.endpoint.clone())
            .with_transport(self.transport)
            .with_retry_options(retries())
            .open_with_connection_string(&self.connection_string, Some(&self.name))
            .await?)
    }
}

/// Opens a receiver of `partition_id` behind (or with `inclusive`, at) `location`.
pub async fn open(
    consumer: &ConsumerClient,
    partition_id: &str,
    location: StartLocation,
    inclusive: bool,
) -> Found<EventReceiver> {
    let options = OpenReceiverOptions {
        start_position: Some(StartPosition {
            location,
            inclusive,
        }),
        ..Default::default()
    };
    Ok(consumer
        .open_receiver_on_partition(partition_id.to_string(), Some(options))
        .await?)
}

/// The next `count` events.
pub async fn take(receiver: &EventReceiver, count: usize) -> Found<Vec<ReceivedEventData>> {
    let mut stream = receiver.stream_events();
    let mut events = Vec::new();
    while events.len() < count {
        events.push(stream.next().await.ok_or("The stream ended.")??);
    }
    Ok(events)
}

/// The first `count` events behind `sequence_number`.
pub async fn read_behind(
    hub: &Hub,
    partition_id: &str,
    sequence_number: i64,
    count: usize,
) -> Found<Vec<ReceivedEventData>> {
    let consumer = hub.consumer().await?;
    let location = StartLocation::SequenceNumber(sequence_number);
    let receiver = open(&consumer, partition_id, location, false).await?;
    let events = take(&receiver, count).await?;
    receiver.close().await?;
    consumer.close().await?;
    Ok(events)
}

/// The last sequence number of a partition.
pub async fn last_of(producer: &ProducerClient, partition_id: &str) -> Found<i64> {
    let properties = producer.get_partition_properties(partition_id).await?;
    Ok(properties.last_enqueued_sequence_number)
}

/// Sends single events to a partition.
pub async fn send(producer: &ProducerClient, partition_id: &str, bodies: &[&str]) -> Found {
    for body in bodies {
        let options = SendEventOptions {
            partition_id: Some(partition_id.to_string()),
        };
        producer.send_event(*body, Some(options)).await?;
    }
    Ok(())
}

pub fn bodies(events: &[ReceivedEventData]) -> Vec<String> {
    events
        .iter()
        .map(|event| String::from_utf8_lossy(event.event_data().body().unwrap_or_default()).into())
        .collect()
}

/// An error unless the two are equal.
pub fn check<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Found {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found:?} instead of {expected:?}").into())
}

/// One retry: what is refused must not hide behind a minute of them.
fn retries() -> RetryOptions {
    RetryOptions {
        initial_delay: Duration::milliseconds(50),
        max_retries: 1,
        ..Default::default()
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} must be set"))
}
