//! The SDK's event processor with its checkpoint store in memory.

use std::{collections::BTreeMap, sync::Arc};

use azure_core::time::Duration;
use azure_messaging_eventhubs::{
    models::StartPositions, EventProcessor, InMemoryCheckpointStore, ProcessorStrategy,
    StartLocation, StartPosition,
};
use futures::StreamExt;

use crate::hub::{check, last_of, send, Found, Hub, PARTITIONS};

const EACH: usize = 5;

/// A processor reads every partition; a later one starts behind its checkpoints.
pub async fn with_checkpoints(hub: &Hub) -> Found {
    let store = Arc::new(InMemoryCheckpointStore::new());
    for round in 0..2 {
        let producer = hub.producer().await?;
        let mut expected = BTreeMap::new();
        // Without its checkpoints the second processor would begin with the first event.
        let mut positions = StartPositions {
            default: StartPosition {
                location: StartLocation::Earliest,
                inclusive: false,
            },
            ..Default::default()
        };
        for id in PARTITIONS {
            let last = last_of(&producer, id).await?;
            for _ in 0..EACH {
                send(&producer, id, &["processed"]).await?;
            }
            expected.insert(id.to_string(), last + 1);
            if round == 0 {
                positions.per_partition.insert(id.to_string(), behind(last));
            }
        }
        producer.close().await?;
        let first_numbers = process(hub, store.clone(), positions).await?;
        check("first sequence numbers", first_numbers, expected)?;
    }
    Ok(())
}

/// Reads `EACH` events from every partition; returns the first sequence number of each.
async fn process(
    hub: &Hub,
    store: Arc<InMemoryCheckpointStore>,
    start_positions: StartPositions,
) -> Found<BTreeMap<String, i64>> {
    let processor = EventProcessor::builder()
        .with_load_balancing_strategy(ProcessorStrategy::Greedy)
        .with_update_interval(Duration::milliseconds(500))
        .with_partition_expiration_duration(Duration::seconds(3))
        .with_start_positions(start_positions)
        .build(hub.consumer().await?, store)
        .await?;
    let reading = async {
        let mut first_numbers = BTreeMap::new();
        while first_numbers.len() < PARTITIONS.len() {
            let partition = processor.next_partition_client().await?;
            let mut events = partition.stream_events().take(EACH);
            while let Some(event) = events.next().await {
                let event = event?;
                let number = event.sequence_number().ok_or("no sequence number")?;
                let id = partition.get_partition_id().to_string();
                first_numbers.entry(id).or_insert(number);
                partition.update_checkpoint(&event).await?;
            }
        }
        Found::Ok(first_numbers)
    };
    tokio::select! {
        found = reading => {
            processor.shutdown().await?;
            found
        }
        ended = processor.run() => {
            Err(format!("The processor ended by itself: {ended:?}").into())
        }
    }
}

fn behind(sequence_number: i64) -> StartPosition {
    StartPosition {
        location: StartLocation::SequenceNumber(sequence_number),
        inclusive: false,
    }
}
