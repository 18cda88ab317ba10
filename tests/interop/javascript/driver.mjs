// Does with Azure's official JavaScript SDK what a Python test says, one JSON object per line on stdin.
//
// Request: {id, do, ...}; answer on stdout: {id, result} or {id, error: {name, code, message}}. Requests run side by
// side. JSON has no bytes: they go as {"$bytes": base64}, both ways. The tests judge; nothing is judged here.

import { createInterface } from "node:readline";
import {
  EventHubBufferedProducerClient,
  EventHubConsumerClient,
  EventHubProducerClient,
} from "@azure/event-hubs";
import { BlobCheckpointStore } from "@azure/eventhubs-checkpointstore-blob";
import { ContainerClient } from "@azure/storage-blob";
import WebSocket from "ws";

// Few and quick tries unless told: a refusal must reach the test, not be hidden behind half a minute of retries.
function clientOptions({ webSocket, maxRetries = 1, retryDelayInMs = 50 }) {
  const retryOptions = { maxRetries, retryDelayInMs, timeoutInMs: 20000 };
  return webSocket ? { retryOptions, webSocketOptions: { webSocket: WebSocket } } : { retryOptions };
}

function fromJson(_key, value) {
  return value !== null && typeof value === "object" && "$bytes" in value
    ? Buffer.from(value.$bytes, "base64")
    : value;
}

function toJson(key, value) {
  // A Buffer was turned into {type, data} by its own toJSON before it comes here: look at the original.
  const original = this[key];
  return Buffer.isBuffer(original) ? { $bytes: original.toString("base64") } : value;
}

function describe(event) {
  const raw = event.getRawAmqpMessage();
  return {
    body: event.body,
    bodyType: raw.bodyType,
    properties: event.properties,
    contentType: event.contentType,
    messageId: event.messageId,
    correlationId: event.correlationId,
    partitionKey: event.partitionKey,
    sequenceNumber: event.sequenceNumber,
    offset: event.offset,
    enqueuedTimeMs: event.enqueuedTimeUtc.getTime(),
    systemProperties: event.systemProperties,
  };
}

function describeError(error) {
  if (error instanceof AggregateError && error.errors.length > 0) {
    return describeError(error.errors.at(-1)); // after retries the SDK throws the errors of all its tries
  }
  return { name: error.name, code: error.code, message: String(error.message) };
}

/** What one subscription received, and those waiting for it. */
class Subscribed {
  events = [];
  errors = [];
  lastEnqueued = null;
  #waiting = [];

  changed() {
    this.#waiting = this.#waiting.filter((tryToAnswer) => !tryToAnswer());
  }

  wait(tryToAnswer) {
    if (!tryToAnswer()) {
      this.#waiting.push(tryToAnswer);
    }
  }
}

const subscriptions = new Map();

const operations = {
  async send({ connectionString, hub, events, how, options, ...rest }) {
    const producer = new EventHubProducerClient(connectionString, hub, clientOptions(rest));
    try {
      if (how === "batch") {
        const batch = await producer.createBatch(options);
        const added = events.map((event) => batch.tryAdd(event));
        await producer.sendBatch(batch);
        return { added, count: batch.count, maxSizeInBytes: batch.maxSizeInBytes };
      }
      if (how === "one by one") {
        for (const event of events) {
          await producer.sendBatch([event], options);
        }
        return { count: events.length };
      }
      await producer.sendBatch(events, options);
      return { count: events.length };
    } finally {
      await producer.close();
    }
  },

  async sendBuffered({ connectionString, hub, events, options, enableIdempotentRetries, ...rest }) {
    const errors = [];
    let succeeded = 0;
    const producer = new EventHubBufferedProducerClient(connectionString, hub, {
      ...clientOptions(rest),
      enableIdempotentRetries,
      maxWaitTimeInMs: 100,
      onSendEventsErrorHandler: async (context) => void errors.push(describeError(context.error)),
      onSendEventsSuccessHandler: async (context) => void (succeeded += context.events.length),
    });
    for (const event of events) {
      await producer.enqueueEvent(event, options);
    }
    await producer.flush();
    await producer.close();
    return { succeeded, errors };
  },

  async subscribe({ name, connectionString, hub, group, partitionId, storage, checkpoints, options, ...rest }) {
    const store =
      storage && new BlobCheckpointStore(new ContainerClient(storage.connectionString, storage.container));
    const consumer = new EventHubConsumerClient(
      group ?? "$Default",
      connectionString,
      hub,
      ...(store ? [store] : []),
      { ...clientOptions(rest), loadBalancingOptions: { updateIntervalInMs: 500, partitionOwnershipExpirationIntervalInMs: 6000 } },
    );
    const subscribed = new Subscribed();
    const handlers = {
      async processEvents(events, context) {
        subscribed.lastEnqueued = context.lastEnqueuedEventProperties;
        if (checkpoints && events.length > 0) {
          await context.updateCheckpoint(events.at(-1));
        }
        // Behind the checkpoint: whoever waits for the events may end the subscription as soon as they are here.
        subscribed.events.push(...events.map((event) => ({ ...describe(event), partitionId: context.partitionId })));
        subscribed.changed();
      },
      async processError(error) {
        subscribed.errors.push(describeError(error));
        subscribed.changed();
      },
    };
    // The SDK's own maxBatchSize is 1, before each of which it waits 20 ms.
    const all = { maxWaitTimeInSeconds: 1, maxBatchSize: 100, ...options };
    const subscription = partitionId === undefined
      ? consumer.subscribe(handlers, all)
      : consumer.subscribe(partitionId, handlers, all);
    subscriptions.set(name, { consumer, subscription, subscribed });
  },

  /** All events once there are `count`, or an error that came first. */
  waitEvents({ name, count }) {
    const { subscribed } = subscriptions.get(name);
    return new Promise((resolve, reject) => {
      subscribed.wait(() => {
        if (subscribed.events.length >= count) {
          resolve({ events: subscribed.events, lastEnqueued: subscribed.lastEnqueued });
        } else if (subscribed.errors.length > 0) {
          reject(Object.assign(new Error(subscribed.errors[0].message), subscribed.errors[0]));
        } else {
          return false;
        }
        return true;
      });
    });
  },

  /** The first error that the SDK reported to the subscription. */
  waitError({ name }) {
    const { subscribed } = subscriptions.get(name);
    return new Promise((resolve) => {
      subscribed.wait(() => {
        if (subscribed.errors.length > 0) {
          resolve(subscribed.errors[0]);
        }
        return subscribed.errors.length > 0;
      });
    });
  },

  async unsubscribe({ name }) {
    const { consumer, subscription } = subscriptions.get(name);
    subscriptions.delete(name);
    await subscription.close();
    await consumer.close();
  },

  async properties({ connectionString, hub, partitionId, ...rest }) {
    const consumer = new EventHubConsumerClient("$Default", connectionString, hub, clientOptions(rest));
    try {
      return {
        hub: await consumer.getEventHubProperties(),
        partition: await consumer.getPartitionProperties(partitionId),
      };
    } finally {
      await consumer.close();
    }
  },
};

async function answer(line) {
  const { id, do: operation, ...request } = JSON.parse(line, fromJson);
  let said;
  try {
    said = { id, result: (await operations[operation](request)) ?? null };
  } catch (error) {
    said = { id, error: describeError(error) };
  }
  process.stdout.write(`${JSON.stringify(said, toJson)}\n`);
}

const lines = createInterface({ input: process.stdin });
lines.on("line", answer);
lines.on("close", () => process.exit(0));
