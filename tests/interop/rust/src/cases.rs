//! What an application does with the SDK, one function per case.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use azure_messaging_eventhubs::{models::EventData, EventDataBatchOptions, StartLocation};
use futures::{future::LocalBoxFuture, FutureExt};

use crate::{
    hub::{bodies, check, last_of, open, read_behind, send, take, Found, Hub, PARTITIONS},
    processor, refusals,
};

type Run = for<'a> fn(&'a Hub) -> LocalBoxFuture<'a, Found>;

pub const ALL: &[(&str, Run)] = &[
    ("hub properties", |hub| hub_properties(hub).boxed_local()),
    ("partition properties", |hub| {
        partition_properties(hub).boxed_local()
    }),
    ("send one event", |hub| send_one(hub).boxed_local()),
    ("send a batch", |hub| send_batch(hub).boxed_local()),
    ("send by key", |hub| send_by_key(hub).boxed_local()),
    ("send to a partition", |hub| {
        send_to_partition(hub).boxed_local()
    }),
    ("receive from each position", |hub| {
        receive_from_each_position(hub).boxed_local()
    }),
    ("receive what comes later", |hub| {
        receive_latest(hub).boxed_local()
    }),
    ("processor with checkpoints", |hub| {
        processor::with_checkpoints(hub).boxed_local()
    }),
    ("owner levels", |hub| {
        refusals::owner_levels(hub).boxed_local()
    }),
    ("unknown partition", |hub| {
        refusals::unknown_partition(hub).boxed_local()
    }),
    ("wrong key", |hub| refusals::wrong_key(hub).boxed_local()),
];

async fn hub_properties(hub: &Hub) -> Found {
    let producer = hub.producer().await?;
    let properties = producer.get_eventhub_properties().await?;
    check("name", properties.name.as_str(), hub.name.as_str())?;
    check(
        "partitions",
        properties.partition_ids,
        PARTITIONS.map(String::from).to_vec(),
    )?;
    let created = properties.created_on.ok_or("no time of creation")?;
    check("created lately", is_recent(created), true)?;
    Ok(producer.close().await?)
}

async fn partition_properties(hub: &Hub) -> Found {
    let producer = hub.producer().await?;
    let before = last_of(&producer, "3").await?;
    send(&producer, "3", &["properties"]).await?;
    let consumer = hub.consumer().await?;
    let found = consumer.get_partition_properties("3").await?;
    check("id", found.id.as_str(), "3")?;
    check("hub", found.eventhub.as_str(), hub.name.as_str())?;
    check("beginning", found.beginning_sequence_number, 0)?;
    check("last", found.last_enqueued_sequence_number, before + 1)?;
    check("is empty", found.is_empty, false)?;
    let time = found
        .last_enqueued_time_utc
        .ok_or("no time of the last event")?;
    check("enqueued lately", is_recent(time), true)?;
    consumer.close().await?;
    Ok(producer.close().await?)
}

async fn send_one(hub: &Hub) -> Found {
    let producer = hub.producer().await?;
    let mut before = HashMap::new();
    for id in PARTITIONS {
        before.insert(id, last_of(&producer, id).await?);
    }
    let event = EventData::builder()
        .with_body("żółw")
        .with_content_type("text/plain".to_string())
        .with_message_id("message")
        .add_property("number".to_string(), 7i64)
        .build();
    producer.send_event(event, None).await?;
    let mut grown = Vec::new();
    for id in PARTITIONS {
        if last_of(&producer, id).await? > before[id] {
            grown.push(id);
        }
    }
    check("partitions that have one more", grown.len(), 1)?;
    let received = read_behind(hub, grown[0], before[grown[0]], 1).await?;
    check("body", bodies(&received), vec!["żółw".to_string()])?;
    let event = received[0].event_data();
    check("content type", event.content_type(), Some("text/plain"))?;
    check(
        "properties",
        event.properties().map(|values| values.len()),
        Some(1),
    )?;
    Ok(producer.close().await?)
}

async fn send_batch(hub: &Hub) -> Found {
    let producer = hub.producer().await?;
    let before = last_of(&producer, "1").await?;
    let options = EventDataBatchOptions {
        partition_id: Some("1".to_string()),
        ..Default::default()
    };
    let batch = producer.create_batch(Some(options)).await?;
    let sent: Vec<String> = (0..1000).map(|number| format!("event {number}")).collect();
    for body in &sent {
        check(
            "it fits",
            batch.try_add_event_data(body.clone(), None)?,
            true,
        )?;
    }
    let is_added = batch.try_add_event_data(vec![0u8; 1_100_000], None)?;
    check("a megabyte more fits", is_added, false)?;
    producer.send_batch(batch, None).await?;
    let received = read_behind(hub, "1", before, sent.len()).await?;
    check("bodies", bodies(&received), sent)?;
    Ok(producer.close().await?)
}

async fn send_by_key(hub: &Hub) -> Found {
    let producer = hub.producer().await?;
    // The service's hash puts device-1 into partition 0 of 4.
    let before = last_of(&producer, "0").await?;
    let options = EventDataBatchOptions {
        partition_key: Some("device-1".to_string()),
        ..Default::default()
    };
    let batch = producer.create_batch(Some(options)).await?;
    for body in ["first", "second"] {
        batch.try_add_event_data(body, None)?;
    }
    producer.send_batch(batch, None).await?;
    let received = read_behind(hub, "0", before, 2).await?;
    check(
        "bodies",
        bodies(&received),
        vec!["first".to_string(), "second".to_string()],
    )?;
    for event in received {
        check("key", event.partition_key().as_deref(), Some("device-1"))?;
    }
    Ok(producer.close().await?)
}

async fn send_to_partition(hub: &Hub) -> Found {
    let producer = hub.producer().await?;
    for id in PARTITIONS {
        let before = last_of(&producer, id).await?;
        send(&producer, id, &["here"]).await?;
        let received = read_behind(hub, id, before, 1).await?;
        check("body", bodies(&received), vec!["here".to_string()])?;
        check(
            "sequence number",
            received[0].sequence_number(),
            Some(before + 1),
        )?;
    }
    Ok(producer.close().await?)
}

async fn receive_from_each_position(hub: &Hub) -> Found {
    let producer = hub.producer().await?;
    let before = last_of(&producer, "2").await?;
    send(&producer, "2", &["one", "two", "three"]).await?;
    let events = read_behind(hub, "2", before, 3).await?;
    let second = events[1].offset().clone().ok_or("no offset")?;
    let enqueued = events[0].enqueued_time().ok_or("no time")?;
    let consumer = hub.consumer().await?;
    for (location, inclusive, first) in [
        (StartLocation::Earliest, false, 0),
        (StartLocation::Offset(second.clone()), true, before + 2),
        (StartLocation::Offset(second), false, before + 3),
        (StartLocation::SequenceNumber(before + 1), true, before + 1),
        (StartLocation::SequenceNumber(before + 1), false, before + 2),
        (StartLocation::EnqueuedTime(enqueued), true, before + 1),
    ] {
        let what = format!("first event from {location:?}, inclusive: {inclusive}");
        let receiver = open(&consumer, "2", location, inclusive).await?;
        let received = take(&receiver, 1).await?;
        check(&what, received[0].sequence_number(), Some(first))?;
        receiver.close().await?;
    }
    consumer.close().await?;
    Ok(producer.close().await?)
}

async fn receive_latest(hub: &Hub) -> Found {
    let producer = hub.producer().await?;
    send(&producer, "2", &["earlier"]).await?;
    let consumer = hub.consumer().await?;
    let receiver = open(&consumer, "2", StartLocation::Latest, false).await?;
    // The SDK attaches its link with the first wait, so events are sent until one is behind it.
    let received = take(&receiver, 1);
    let sending = async {
        loop {
            send(&producer, "2", &["later"]).await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        #[allow(unreachable_code)]
        Found::Ok(())
    };
    let received = tokio::select! {
        received = received => received?,
        error = sending => return error,
    };
    check("body", bodies(&received), vec!["later".to_string()])?;
    receiver.close().await?;
    consumer.close().await?;
    Ok(producer.close().await?)
}

/// Within five minutes: the clock is the service's, on the same machine.
fn is_recent(time: SystemTime) -> bool {
    let five_minutes = Duration::from_secs(300);
    time > SystemTime::now() - five_minutes && time < SystemTime::now() + five_minutes
}
