//! What the service refuses, and how the SDK says so.

use azure_messaging_eventhubs::{
    error::ErrorKind, ConsumerClient, EventHubsError, EventReceiver, OpenReceiverOptions,
    StartLocation, StartPosition,
};

use crate::hub::{check, open, send, take, Found, Hub};

/// A higher owner level takes the partition; a lower one is refused.
pub async fn owner_levels(hub: &Hub) -> Found {
    let producer = hub.producer().await?;
    send(&producer, "3", &["owned"]).await?;
    producer.close().await?;
    // A client each: the receivers that one client opens for a partition share a link.
    let (low, high, late) = (
        hub.consumer().await?,
        hub.consumer().await?,
        hub.consumer().await?,
    );
    let first = open_level(&low, 1).await?;
    take(&first, 1).await?;
    let second = open_level(&high, 2).await?;
    take(&second, 1).await?;
    for receiver in [first, open_level(&late, 1).await?] {
        // What was prefetched comes before the error.
        let error = loop {
            if let Err(error) = take(&receiver, 1).await {
                break error;
            }
        };
        let error = error.downcast::<EventHubsError>()?;
        let is_disconnected = matches!(error.kind, ErrorKind::ConsumerDisconnected(_));
        check(&format!("disconnected by {error}"), is_disconnected, true)?;
    }
    Ok(high.close().await?)
}

/// Producer and receiver are told soon, and by name, that there is no such partition.
pub async fn unknown_partition(hub: &Hub) -> Found {
    let producer = hub.producer().await?;
    let sent = send(&producer, "99", &["lost"]).await;
    check_refused("send", sent, "It should be between 0 and 3.")?;
    let consumer = hub.consumer().await?;
    let receiver = open(&consumer, "99", StartLocation::Earliest, false).await?;
    check_refused(
        "receive",
        take(&receiver, 1).await,
        "It should be between 0 and 3.",
    )?;
    let found = consumer.get_partition_properties("99").await;
    check("properties of it", found.is_err(), true)
}

/// A key that the policy does not have is refused when the first operation presents its token.
pub async fn wrong_key(hub: &Hub) -> Found {
    let parts: Vec<String> = hub
        .connection_string
        .split(';')
        .map(|part| match part.strip_prefix("SharedAccessKey=") {
            Some(_) => "SharedAccessKey=d3Jvbmc=".to_string(),
            None => part.to_string(),
        })
        .collect();
    let sent = match hub.producer_with(&parts.join(";")).await {
        Ok(producer) => send(&producer, "0", &["forbidden"]).await,
        Err(error) => Err(error),
    };
    check_refused("send", sent, "InvalidSignature")
}

async fn open_level(consumer: &ConsumerClient, level: i64) -> Found<EventReceiver> {
    let options = OpenReceiverOptions {
        owner_level: Some(level),
        start_position: Some(StartPosition {
            location: StartLocation::Earliest,
            ..Default::default()
        }),
        ..Default::default()
    };
    let receiver = consumer.open_receiver_on_partition("3".to_string(), Some(options));
    Ok(receiver.await?)
}

fn check_refused<T>(what: &str, found: Found<T>, words: &str) -> Found {
    let Err(error) = found else {
        return Err(format!("{what} was not refused").into());
    };
    let said = format!("{error:?}");
    if said.contains(words) {
        return Ok(());
    }
    Err(format!("{what} was refused, but not with {words}: {said}").into())
}
