import { createHmac } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { EventHubConsumerClient, earliestEventPosition } from "@azure/event-hubs";
import { BlobCheckpointStore } from "@azure/eventhubs-checkpointstore-blob";
import { ContainerClient } from "@azure/storage-blob";

const [HUB, GROUP] = ["orders", "$Default"];
const { TIDEGATE_CONNECTION_STRING: connectionString, TIDEGATE_URL: url, STORAGE: storage } = process.env;

function token() {
  const part = (name) => new RegExp(`(?:^|;)${name}=([^;]+)`).exec(connectionString)[1];
  const audience = encodeURIComponent(`sb://localhost/${HUB}`);
  const expiry = Math.floor(Date.now() / 1000) + 3600;
  const signed = createHmac("sha256", part("SharedAccessKey")).update(`${audience}\n${expiry}`).digest("base64");
  const name = part("SharedAccessKeyName");
  return `SharedAccessSignature sr=${audience}&sig=${encodeURIComponent(signed)}&se=${expiry}&skn=${name}`;
}

async function deadLetters(method, path = "", body = undefined) {
  const group = encodeURIComponent(GROUP);
  for (;;) {
    const answer = await fetch(`${url}/api/v1/event-hubs/${HUB}/consumer-groups/${group}/dead-letters${path}`, {
      method,
      headers: { Authorization: token() },
      body: body && JSON.stringify(body),
    });
    if (answer.ok) {
      return answer.json();
    }
    if (![429, 503].includes(answer.status)) {
      throw new Error((await answer.json()).error.message);
    }
    await sleep(1000 * Number(answer.headers.get("retry-after") ?? 1));
  }
}

function handle(event) {
  if (!Number.isInteger(event.body.quantity)) {
    throw new TypeError("quantity is not a number");
  }
}

async function processEvents(events, context) {
  const failed = [];
  for (const event of events) {
    try {
      handle(event);
      console.log(`processed ${context.partitionId}/${event.sequenceNumber}`);
    } catch (error) {
      failed.push({
        partition_id: context.partitionId,
        sequence_number: event.sequenceNumber,
        error_type: error.name,
        reason: String(error.message || error).slice(0, 500),
      });
    }
  }
  if (failed.length > 0) {
    const { added, missing } = await deadLetters("POST", "", { dead_letters: failed });
    console.log(`dead letters: ${added} added, ${missing.length} missing`);
  }
  if (events.length > 0) {
    await context.updateCheckpoint(events.at(-1));
  }
}

async function consume() {
  const store = new BlobCheckpointStore(new ContainerClient(storage, "checkpoints"));
  const consumer = new EventHubConsumerClient(GROUP, connectionString, HUB, store);
  const processError = async (error) => console.error(error.message);
  const options = { startPosition: earliestEventPosition, maxBatchSize: 100, maxWaitTimeInSeconds: 1 };
  const subscription = consumer.subscribe({ processEvents, processError }, options);
  process.once("SIGINT", async () => {
    await subscription.close();
    await consumer.close();
  });
}

const [command, words] = process.argv.slice(2);
if (command === "list") {
  for (const each of (await deadLetters("GET")).dead_letters) {
    console.log(`${each.partition_id}/${each.sequence_number} ${each.error_type}: ${each.reason}`);
  }
} else if (command === "redrive") {
  console.log(`redriven: ${(await deadLetters("POST", "/redrive", { reason: words })).closed}`);
} else if (command === "discard") {
  console.log(`discarded: ${(await deadLetters("POST", "/discard", { because: words })).closed}`);
} else {
  await consume();
}
