// Programs with Azure's official JavaScript SDK that run until they are killed, and print one JSON object per line:
// what the suites mixed_group and long_runs judge. Settings are in the environment (tests/interop/suites/lasting.py).
//
//   node lasting.mjs member    a processor: {"partition": "0", "numbers": [sequence numbers]} before each checkpoint
//   node lasting.mjs client    a producer and a consumer: {"sent": N}, {"received": N}, {"error", "code", "of"}

import { createHmac } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { EventHubConsumerClient, EventHubProducerClient, earliestEventPosition } from "@azure/event-hubs";
import { BlobCheckpointStore } from "@azure/eventhubs-checkpointstore-blob";
import { ContainerClient } from "@azure/storage-blob";

const environment = process.env;
const { TIDEGATE_CONNECTION_STRING: connectionString, TIDEGATE_HUB: hub } = environment;

function tell(said) {
  process.stdout.write(`${JSON.stringify(said)}\n`);
}

function tellError(of, error) {
  if (error instanceof AggregateError && error.errors.length > 0) {
    tellError(of, error.errors.at(-1)); // of all tries
  } else {
    tell({ error: String(error.message), code: String(error.code ?? error.name), of });
  }
}

const options = { maxBatchSize: 50, maxWaitTimeInSeconds: 1, startPosition: earliestEventPosition };

/** The SDK's store, with the port in the namespace's name: JavaScript leaves it out there, Python and Go do not. */
class PortedStore extends BlobCheckpointStore {
  listOwnership = (_namespace, ...rest) => super.listOwnership(environment.TIDEGATE_NAMESPACE, ...rest);
  listCheckpoints = (_namespace, ...rest) => super.listCheckpoints(environment.TIDEGATE_NAMESPACE, ...rest);
  claimOwnership = (claimed, ...rest) => super.claimOwnership(claimed.map(ported), ...rest);
  updateCheckpoint = (checkpoint, ...rest) => super.updateCheckpoint(ported(checkpoint), ...rest);
}

function ported(named) {
  return { ...named, fullyQualifiedNamespace: environment.TIDEGATE_NAMESPACE };
}

function runMember() {
  const blobs = new ContainerClient(environment.AZURITE_CONNECTION_STRING, environment.TIDEGATE_CONTAINER);
  const consumer = new EventHubConsumerClient("$Default", connectionString, hub, new PortedStore(blobs), {
    loadBalancingOptions: {
      strategy: "greedy",
      updateIntervalInMs: 1000,
      partitionOwnershipExpirationIntervalInMs: 1000 * environment.TIDEGATE_LEASE_S,
    },
  });
  const handlers = {
    async processEvents(events, context) {
      if (events.length > 0) {
        tell({ partition: context.partitionId, numbers: events.map((event) => event.sequenceNumber) });
        await context.updateCheckpoint(events.at(-1));
      }
    },
    processError: async (error) => tellError("receive", error),
  };
  consumer.subscribe(handlers, options);
}

// The SDK's own delay is 30 s: whatever it takes for transient, a wrong token too, is reported after 90 s.
const clientOptions = { retryOptions: { retryDelayInMs: 2000 } };

/** Makes tokens that run out soon, as often as the SDK asks for one. */
const shortLived = {
  isSasTokenProvider: true,
  async getToken(audience) {
    const field = (name) => connectionString.split(";").find((each) => each.startsWith(`${name}=`)).slice(name.length + 1);
    const expiry = Math.floor(Date.now() / 1000) + Number(environment.TIDEGATE_TOKEN_S);
    const resource = encodeURIComponent(audience);
    const signature = createHmac("sha256", field("SharedAccessKey")).update(`${resource}\n${expiry}`).digest("base64");
    const signed = `sr=${resource}&sig=${encodeURIComponent(signature)}&se=${expiry}`;
    return { token: `SharedAccessSignature ${signed}&skn=${field("SharedAccessKeyName")}`, expiresOnTimestamp: expiry * 1000 };
  },
};

/** With a key, or with tokens that run out: only a connection string can say that there is no TLS. */
function withCredential(client) {
  if (Number(environment.TIDEGATE_TOKEN_S) > 0) {
    client._context.tokenCredential = shortLived;
  }
  return client;
}

async function send() {
  const producer = withCredential(new EventHubProducerClient(connectionString, hub, clientOptions));
  const padding = " ".repeat(Number(environment.TIDEGATE_EVENT_BYTES));
  for (let number = 0; ; ) {
    try {
      await producer.sendBatch([{ body: `${number}${padding}` }], { partitionId: "0" });
      tell({ sent: number });
      number += 1;
      await sleep(Number(environment.TIDEGATE_SEND_INTERVAL_MS));
    } catch (error) {
      tellError("send", error);
      await sleep(1000);
    }
  }
}

function receive() {
  const consumer = withCredential(new EventHubConsumerClient("$Default", connectionString, hub, clientOptions));
  const handlers = {
    async processEvents(events) {
      for (const event of events) {
        tell({ received: Number(event.body) });
        await sleep(Number(environment.TIDEGATE_RECEIVE_DELAY_MS));
      }
    },
    processError: async (error) => tellError("receive", error),
  };
  // Of one partition: to balance load the SDK asks for the partitions, and repeats that every 30 s whatever is set.
  consumer.subscribe("0", handlers, { ...options, maxBatchSize: 10 });
}

if (process.argv[2] === "member") {
  runMember();
} else {
  void send();
  receive();
}
