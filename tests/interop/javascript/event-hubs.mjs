// The cases of @azure/event-hubs 2, 5 and 6: those that all have, then those of each generation.

import { randomBytes, randomUUID } from "node:crypto";
import http from "node:http";
import https from "node:https";
import net from "node:net";
import tls from "node:tls";
import {
  Skipped, assert, connectionString, host, hub, later, parts, port, refusal, requireHere, runCases, sasToken, transport,
} from "./cases.mjs";
import { fromSdk2, generation, openSdk } from "./sdk.mjs";

const PARTITIONS = ["0", "1", "2", "3"];
const ONCE = { maxRetries: 0 }; // 5 and 6 try again for minutes where a token is refused: it may have been renewed

/** A position behind all that is in the partition. */
async function end(sdk, partitionId) {
  const { lastEnqueuedSequenceNumber } = await sdk.partitionProperties(partitionId);
  return lastEnqueuedSequenceNumber >= 0 ? { sequenceNumber: lastEnqueuedSequenceNumber, isInclusive: false } : {};
}

/** The first `count` events from there; the receiver closes, of which a partition has five at most. */
async function read(sdk, partitionId, count, position) {
  const reading = sdk.subscribe(partitionId, { position });
  try {
    return await reading.events.atLeast(count);
  } finally {
    await reading.close();
  }
}

/** What `send` puts into the partition, once `count` events are there. */
async function roundTrip(partitionId, count, send) {
  const sdk = openSdk();
  const position = await end(sdk, partitionId);
  await send(sdk);
  return read(sdk, partitionId, count, position);
}

/** What `send` puts into any partition, each event with its partition's number. */
async function roundTripAnywhere(count, send) {
  const sdk = openSdk();
  const ends = [];
  for (const partitionId of PARTITIONS) {
    ends.push(await end(sdk, partitionId)); // one after another: 2.x loses answers to questions asked at once
  }
  await send(sdk);
  const grown = [];
  for (const partitionId of PARTITIONS) {
    const { sequenceNumber: before = -1 } = ends[partitionId];
    const { lastEnqueuedSequenceNumber: last } = await sdk.partitionProperties(partitionId);
    if (last > before) {
      const found = await read(sdk, partitionId, last - before, ends[partitionId]);
      grown.push(...found);
    }
  }
  assert.equal(grown.length, count);
  return grown;
}

const bodies = (events) => events.map((event) => event.body);

function equalBytes(found, expected) {
  assert.equal(Buffer.compare(Buffer.from(found), expected), 0, `${found.length} bytes of ${expected.length}`);
}

/** A refusal of sending and of receiving, by clients with the SDK's own retries. */
async function refusals(options) {
  const send = await refusal(openSdk(options).send([{ body: "x" }]));
  const receive = (await openSdk(options).subscribe("0").errors.atLeast(1))[0];
  return [send, receive];
}

async function readFrom(sdk, position, first, count = 1) {
  const found = await read(sdk, "2", count, position);
  assert.equal(found[0].body, first);
}

const shared = {
  async "send one event"() {
    const found = await roundTripAnywhere(1, (sdk) => sdk.send([{ body: "alone" }]));
    assert.deepEqual(bodies(found), ["alone"]);
  },

  async "send a list"() {
    const found = await roundTripAnywhere(3, (sdk) => sdk.send([{ body: 1 }, { body: 2 }, { body: 3 }]));
    assert.deepEqual(bodies(found), [1, 2, 3]);
  },

  async "send with a key"() {
    const key = randomUUID();
    const found = await roundTripAnywhere(4, async (sdk) => {
      await sdk.send([{ body: "a" }], { partitionKey: key });
      await sdk.send([{ body: "b" }, { body: "c" }], { partitionKey: key });
      await sdk.send([{ body: "d" }], { partitionKey: key });
    });
    assert.equal(new Set(found.map((event) => event.partitionId)).size, 1, "in several partitions");
    assert.deepEqual(found.map((event) => event.partitionKey), [key, key, key, key]);
  },

  async "send to a partition"() {
    const found = await roundTrip("3", 3, async (sdk) => {
      await sdk.send([{ body: "a" }], { partitionId: "3" });
      await sdk.send([{ body: "b" }, { body: "c" }], { partitionId: "3" });
    });
    assert.deepEqual(bodies(found), ["a", "b", "c"]);
  },

  async "send with a key to a partition"() {
    const keyed = { bodyType: "data", messageAnnotations: { "x-opt-partition-key": "the key" } };
    const found = await roundTrip("1", 3, async (sdk) => {
      if (generation === 2) {
        await sdk.send([{ body: "a" }], { partitionId: "1", partitionKey: "the key" });
        await sdk.send([{ body: "b" }, { body: "c" }], { partitionId: "1", partitionKey: "the key" });
        return;
      }
      // 5 and 6 refuse both options themselves, but send annotations as they are.
      assert.match((await refusal(sdk.send([{ body: "a" }], { partitionId: "1", partitionKey: "k" }))).message, /cannot both/);
      await sdk.send([{ body: "a", ...keyed }], { partitionId: "1" });
      await sdk.send(["b", "c"].map((body) => ({ body, ...keyed })), { partitionId: "1" });
    });
    assert.deepEqual(bodies(found), ["a", "b", "c"]);
    assert.deepEqual(found.map((event) => event.partitionKey), ["the key", "the key", "the key"]);
  },

  async "events of all sizes"() {
    const sent = [1, 100, 65_000, 70_000, 1_000_000, 5].map((size) => randomBytes(size));
    const found = await roundTrip("0", sent.length, async (sdk) => {
      for (const body of sent) {
        await sdk.send([{ body }], { partitionId: "0" });
      }
    });
    // A lone digit is JSON, and read as a number.
    found.slice(1, -1).forEach((event, index) => equalBytes(event.body, sent[index + 1]));
  },

  async "an event over the limit is refused"() {
    const error = await refusal(openSdk().send([{ body: Buffer.alloc(1_100_000) }], { partitionId: "0" }));
    assert.equal(error.name === "MessagingError" ? error.code : error.name, "MessageTooLargeError");
  },

  async "properties of all types"() {
    const properties = {
      text: "żółw", empty: "", whole: 7, negative: -7, large: 2 ** 40, ratio: 0.5, yes: true, no: false,
      when: new Date("2026-01-02T03:04:05.678Z"),
    };
    const [found] = await roundTrip("0", 1, (sdk) => sdk.send([{ body: "x", properties }], { partitionId: "0" }));
    const when = found.properties.when;
    assert.deepEqual({ ...found.properties, when: new Date(when) }, properties);
  },

  async "ids and content type"() {
    const ids = { messageId: "message", correlationId: "correlation", contentType: "text/plain" };
    const [found] = await roundTrip("0", 1, (sdk) => sdk.send([{ body: "x", ...ids }], { partitionId: "0" }));
    assert.deepEqual([found.messageId, found.correlationId, found.contentType], Object.values(ids));
  },

  async "bodies of JSON and bytes"() {
    const sent = ["text", { a: [1, "two", null] }, [1, 2], 7, true, null, Buffer.from([0, 255])];
    const found = await roundTrip("0", sent.length, (sdk) => sdk.send(sent.map((body) => ({ body })), { partitionId: "0" }));
    assert.deepEqual(bodies(found), sent);
  },

  async "properties of the hub"() {
    const said = await openSdk().hubProperties();
    assert.deepEqual([said.name, said.partitionIds], [hub, PARTITIONS]);
    assert.ok(Math.abs(Date.now() - said.createdOn.getTime()) < 3_600_000, String(said.createdOn));
  },

  async "properties of a partition"() {
    const sdk = openSdk();
    await sdk.send([{ body: "x" }], { partitionId: "2" });
    const before = await sdk.partitionProperties("2");
    await sdk.send([{ body: "x" }, { body: "y" }], { partitionId: "2" });
    const after = await sdk.partitionProperties("2");
    assert.deepEqual([after.hub, after.partitionId, after.beginningSequenceNumber], [hub, "2", 0]);
    assert.equal(after.lastEnqueuedSequenceNumber, before.lastEnqueuedSequenceNumber + 2);
    assert.notEqual(after.lastEnqueuedOffset, before.lastEnqueuedOffset);
    assert.ok(after.lastTime >= before.lastTime && Math.abs(Date.now() - after.lastTime.getTime()) < 60_000);
  },

  async "receive from every position"() {
    const sdk = openSdk();
    const behind = await end(sdk, "2");
    await sdk.send([{ body: "zero" }], { partitionId: "2" });
    await new Promise((resolve) => setTimeout(resolve, 20)); // so that the times differ
    await sdk.send(["one", "two", "three"].map((body) => ({ body })), { partitionId: "2" });
    const [, one, two] = await read(sdk, "2", 4, behind);
    const [first] = await read(sdk, "2", 1, { earliest: true });
    assert.equal(first.sequenceNumber, 0);
    await readFrom(sdk, { sequenceNumber: one.sequenceNumber, isInclusive: true }, "one", 3);
    await readFrom(sdk, { sequenceNumber: one.sequenceNumber, isInclusive: false }, "two", 2);
    await readFrom(sdk, { offset: two.offset, isInclusive: true }, "two", 2);
    await readFrom(sdk, { offset: two.offset, isInclusive: false }, "three", 1);
    await readFrom(sdk, { enqueuedTime: one.enqueuedTime.getTime() - 1 }, "one", 3);
  },

  async "receive from the latest"() {
    const sdk = openSdk();
    await sdk.send([{ body: "before" }], { partitionId: "2" });
    const { events } = sdk.subscribe("2", { position: { latest: true } });
    // Nothing tells when the SDK's link is open: send until the first comes.
    let sent = 0;
    const send = () => sdk.send([{ body: ++sent }], { partitionId: "2" }).catch(() => undefined);
    const sending = setInterval(send, 300);
    const found = await events.atLeast(2).finally(() => clearInterval(sending));
    assert.ok(found[0].body !== "before" && found[1].body === found[0].body + 1, JSON.stringify(bodies(found)));
  },

  async "a long backlog in order"() {
    const found = await roundTrip("1", 5000, async (sdk) => {
      for (let start = 0; start < 5000; start += 500) {
        await sdk.send(Array.from({ length: 500 }, (_, n) => ({ body: start + n })), { partitionId: "1" });
      }
    });
    assert.deepEqual(bodies(found), Array.from({ length: 5000 }, (_, n) => n));
  },

  async "many sends at once"() {
    const found = await roundTrip("1", 300, (sdk) =>
      Promise.all(Array.from({ length: 300 }, (_, n) => sdk.send([{ body: n }], { partitionId: "1" }))),
    );
    assert.deepEqual(bodies(found).sort((a, b) => a - b), Array.from({ length: 300 }, (_, n) => n));
  },

  async "a higher owner level takes the partition"() {
    const sdk = openSdk();
    const position = await end(sdk, "3");
    const first = sdk.subscribe("3", { ownerLevel: 1, position });
    await sdk.send([{ body: "a" }], { partitionId: "3" });
    await first.events.atLeast(1);
    const second = sdk.subscribe("3", { ownerLevel: 2, position });
    await second.events.atLeast(1);
    const [lost] = await first.errors.atLeast(1);
    assert.equal(lost.code ?? lost.name, "ReceiverDisconnectedError", lost.message);
    const [refused] = await openSdk().subscribe("3", { ownerLevel: 1, position }).errors.atLeast(1);
    assert.equal(refused.code ?? refused.name, "ReceiverDisconnectedError", refused.message);
  },

  async "last enqueued properties"() {
    const sdk = openSdk();
    const position = await end(sdk, "0");
    await sdk.send([{ body: "x" }, { body: "y" }], { partitionId: "0" });
    const with_ = sdk.subscribe("0", { position, trackLast: true });
    const last = (await with_.events.atLeast(2)).at(-1);
    assert.deepEqual([with_.last.sequenceNumber, with_.last.offset], [last.sequenceNumber, last.offset]);
    const without = sdk.subscribe("0", { position });
    await without.events.atLeast(2);
    assert.equal(without.last?.sequenceNumber, undefined);
  },

  async "a wrong key is refused"() {
    for (const error of await refusals({ key: "wrong", retryOptions: ONCE })) {
      assert.equal(error.code ?? error.name, "UnauthorizedError", error.message);
    }
  },

  async "an unknown hub is refused"() {
    for (const error of await refusals({ name: "no-such-hub" })) {
      assert.equal(error.code ?? error.name, "MessagingEntityNotFoundError", error.message);
    }
  },

  async "an unknown partition is refused"() {
    const send = await refusal(openSdk().send([{ body: "x" }], { partitionId: "99" }));
    const [receive] = await openSdk().subscribe("99").errors.atLeast(1);
    const read = await refusal(openSdk().partitionProperties("99"));
    for (const error of [send, receive, read]) {
      assert.equal(error.code ?? error.name, "ArgumentOutOfRangeError", error.message);
      assert.match(error.message, /partition is invalid|between 0 and 3|99/);
    }
  },

  async "an unknown consumer group is refused"() {
    const [error] = await openSdk().subscribe("0", { group: "no-such-group" }).errors.atLeast(1);
    assert.equal(error.code ?? error.name, "MessagingEntityNotFoundError", error.message);
  },

  async "tokens of every audience"() {
    const schemes = ["sb://", "amqps://", "http://", ""];
    for (const resource of [...schemes.map((scheme) => `${scheme}${host}/${hub}`), `sb://${host}/`, host]) {
      const sdk = openSdk({ token: sasToken(resource) });
      await sdk.send([{ body: resource }], { partitionId: "0" });
      assert.equal((await sdk.hubProperties()).name, hub, resource);
      await read(sdk, "0", 1);
    }
  },

  async "tokens of other audiences and times"() {
    for (const token of [sasToken(`sb://${host}/another`), sasToken(`${host}/another`), sasToken(`sb://${host}/`, { seconds: -60 })]) {
      const error = await refusal(openSdk({ token, retryOptions: ONCE }).send([{ body: "x" }]));
      assert.equal(error.code ?? error.name, "UnauthorizedError", error.message);
    }
  },

  async "clients close and others open"() {
    for (const body of [1, 2, 3, 4, 5]) {
      const sdk = openSdk();
      await sdk.send([{ body }]);
      await sdk.close();
    }
  },
};

const overWebSocket = {
  async "through an HTTP proxy"() {
    const tunnels = [];
    const proxy = http.createServer().on("connect", ({ url }, socket) => {
      tunnels.push(url);
      const [name, port] = url.split(":");
      const service = net.connect(Number(port), name, () => socket.write("HTTP/1.1 200 OK\r\n\r\n"));
      service.pipe(socket).pipe(service);
      [service, socket].forEach((either) => either.on("error", () => undefined));
    });
    await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
    later(() => proxy.close());

    class ThroughProxy extends https.Agent {
      createConnection(options, done) {
        const asked = { port: proxy.address().port, method: "CONNECT", path: `${options.host}:${options.port}` };
        const tunnel = http.request(asked).on("error", done);
        tunnel.on("connect", (_response, socket) => done(null, tls.connect({ ...options, socket }))).end();
      }
    }
    const sdk = openSdk({ agent: new ThroughProxy() });
    await sdk.send([{ body: "x" }], { partitionId: "0" });
    assert.equal((await sdk.hubProperties()).name, hub);
    assert.equal(tunnels.length, 1);
  },
};

const of2 = {
  async "receiveBatch ends with its count and with its time"() {
    const sdk = openSdk();
    const position = await end(sdk, "0");
    await sdk.send([{ body: 1 }, { body: 2 }, { body: 3 }], { partitionId: "0" });
    const receive = async (count, seconds) =>
      bodies((await sdk.client.receiveBatch("0", count, seconds, sdk.receiving(position))).map(fromSdk2));
    assert.deepEqual(await receive(3, 20), [1, 2, 3]);
    assert.deepEqual(await receive(10, 2), [1, 2, 3]);
  },

  async "partition ids"() {
    assert.deepEqual(await openSdk().client.getPartitionIds(), PARTITIONS);
  },
};

const since5 = {
  async "send a batch of createBatch"() {
    const found = await roundTrip("2", 2, async (sdk) => {
      const batch = await sdk.producer.createBatch({ partitionId: "2" });
      assert.equal(batch.maxSizeInBytes, 1_048_576);
      assert.ok(batch.tryAdd({ body: "a" }) && batch.tryAdd({ body: "b" }));
      assert.ok(!batch.tryAdd({ body: Buffer.alloc(1_048_576) }), "it took an event over the limit");
      await sdk.producer.sendBatch(batch);
    });
    assert.deepEqual(bodies(found), ["a", "b"]);
  },

  async "a batch filled to the brim"() {
    let count = 0;
    const sdk = openSdk();
    const position = await end(sdk, "2");
    const batch = await sdk.producer.createBatch({ partitionId: "2" });
    while (batch.tryAdd({ body: Buffer.alloc(10_000) })) {
      count++;
    }
    await sdk.producer.sendBatch(batch);
    assert.equal((await read(sdk, "2", count, position)).length, count);
  },

  async "bodies of every kind"() {
    const kinds = { value: { a: 1, b: [true, null] }, sequence: [[1, "two", 3.5]], data: Buffer.from([0, 255]) };
    const sent = Object.entries(kinds).map(([bodyType, body]) => ({ bodyType, body }));
    const found = await roundTrip("2", 3, (sdk) => sdk.send(sent, { partitionId: "2" }));
    assert.deepEqual(found.map((event) => event.raw.bodyType), Object.keys(kinds));
    assert.deepEqual(found[0].body, kinds.value);
    assert.deepEqual(found[1].body, kinds.sequence);
    equalBytes(found[2].body, kinds.data);
  },

  async "annotated messages keep header, footer and annotations"() {
    const sent = {
      body: "x", bodyType: "value", header: { priority: 3, timeToLive: 60_000 }, footer: { sum: "f" },
      messageAnnotations: { mine: "a" }, properties: { subject: "s", groupId: "g", replyTo: "r", to: "t" },
      applicationProperties: { own: 1 },
    };
    const [{ raw }] = await roundTrip("2", 1, (sdk) => sdk.send([sent], { partitionId: "2" }));
    assert.deepEqual([raw.header.priority, raw.header.timeToLive, raw.footer.sum, raw.messageAnnotations.mine], [3, 60_000, "f", "a"]);
    const { subject, groupId, replyTo, to } = raw.properties;
    assert.deepEqual({ subject, groupId, replyTo, to }, sent.properties);
    assert.deepEqual(raw.applicationProperties, sent.applicationProperties);
  },

  async "a buffered producer"() {
    await buffered({}, (n) => (n % 2 ? { partitionKey: `key ${n % 5}` } : {}));
  },

  async "a buffered producer to partitions"() {
    await buffered({}, (n) => ({ partitionId: PARTITIONS[n % 4] }));
  },

  async "an idempotent buffered producer"() {
    await buffered({ enableIdempotentRetries: true }, () => ({}));
  },

  async "the hub's name in the connection string"() {
    await isServed({ target: [`${connectionString};EntityPath=${hub}`.replace(";;", ";")] });
  },

  async "a custom endpoint address"() {
    needsTls();
    const target = [connectionString.replace(`:${port}`, ""), hub];
    await isServed({ target, customEndpointAddress: `sb://${host}:${port}` });
  },

  async "credentials of every kind"() {
    needsTls();
    const { AzureNamedKeyCredential, AzureSASCredential } = requireHere("@azure/core-auth");
    const token = sasToken(`sb://${host}/${hub}`);
    for (const credential of [
      new AzureNamedKeyCredential(parts.SharedAccessKeyName, parts.SharedAccessKey),
      new AzureSASCredential(token),
      { getToken: async () => ({ token, expiresOnTimestamp: Date.now() + 3_600_000 }) }, // a TokenCredential
    ]) {
      await isServed({ target: [`${host}:${port}`, hub, credential] });
    }
  },

  async "a processor with checkpoints in memory"() {
    await processor(undefined, "in memory");
  },

  async "a processor with checkpoints in Blob Storage"() {
    await processor(await blobStore(), "in blobs");
  },

  async "two processors share the partitions"() {
    const store = await blobStore();
    const sdk = openSdk();
    const owners = [new Set(), new Set()];
    for (const owned of owners) {
      const consumer = sdk.consumer("$Default", store);
      const subscription = consumer.subscribe({
        processInitialize: async (context) => void owned.add(context.partitionId),
        processClose: async (_reason, context) => void owned.delete(context.partitionId),
        processEvents: async () => undefined,
        processError: async () => undefined,
      }, { maxWaitTimeInSeconds: 1 });
      later(() => subscription.close());
    }
    const until = Date.now() + 60_000;
    while (owners.some((owned) => owned.size !== 2) || new Set(owners.flatMap((owned) => [...owned])).size !== 4) {
      assert.ok(Date.now() < until, `they have ${owners.map((owned) => [...owned])}`);
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
  },
};

/** Sending, asking and receiving work for a client of `options`. */
async function isServed(options) {
  const sdk = openSdk(options);
  const position = await end(sdk, "0");
  await sdk.send([{ body: "served" }], { partitionId: "0" });
  assert.deepEqual(bodies(await read(sdk, "0", 1, position)), ["served"]);
}

function needsTls() {
  if (transport === "plain") {
    throw new Skipped("Without TLS this SDK takes a connection string with UseDevelopmentEmulator, and nothing else.");
  }
}

/** 100 events with `optionsOf` each reach the hub once, where their options say, and the producer's handlers agree. */
async function buffered(options, optionsOf) {
  const numbers = Array.from({ length: 100 }, (_, n) => n);
  const keys = [...new Set(numbers.map((n) => optionsOf(n).partitionKey))].filter((key) => key !== undefined);
  const found = await roundTripAnywhere(100 + keys.length, async (sdk) => {
    const errors = [];
    let succeeded = 0;
    const producer = sdk.buffered({
      ...options,
      maxWaitTimeInMs: 100,
      onSendEventsErrorHandler: async ({ error }) => void errors.push(error),
      onSendEventsSuccessHandler: async ({ events }) => void (succeeded += events.length),
    });
    for (const n of numbers) {
      await producer.enqueueEvent({ body: n }, optionsOf(n));
    }
    await producer.flush();
    await producer.close();
    assert.deepEqual(errors, []);
    assert.equal(succeeded, 100);
    // This SDK finds a key's partition itself and drops the key; here the service finds it.
    await Promise.all(keys.map((partitionKey) => sdk.send([{ body: null }], { partitionKey })));
  });
  const sent = found.filter((event) => event.body !== null);
  assert.deepEqual(bodies(sent).sort((a, b) => a - b), numbers);
  for (const { body, partitionId } of sent) {
    const asked = optionsOf(body);
    const keyed = found.find((event) => event.body === null && event.partitionKey === asked.partitionKey);
    const expected = asked.partitionKey === undefined ? asked.partitionId : keyed.partitionId;
    assert.ok(expected === undefined || partitionId === expected, `${body} is in ${partitionId}, not ${expected}`);
  }
}

/** A processor reads all partitions; with a store, a second one continues behind its checkpoints. */
async function processor(store, name) {
  const sdk = openSdk();
  const send = (mark) => Promise.all(PARTITIONS.map((partitionId) => sdk.send([{ body: { mark, partitionId } }], { partitionId })));
  const marked = (found, mark) => found.filter(({ body }) => body?.mark === mark).map(({ partitionId }) => partitionId).sort();
  const lasts = await Promise.all(PARTITIONS.map((partitionId) => sdk.partitionProperties(partitionId)));
  const before = lasts.reduce((sum, { lastEnqueuedSequenceNumber }) => sum + lastEnqueuedSequenceNumber + 1, 0);
  await send(name);
  const first = sdk.subscribe(null, { store, checkpoints: true });
  assert.deepEqual(marked(await first.events.atLeast(before + 4, 60_000), name), PARTITIONS);
  await first.close();
  if (store !== undefined) {
    await send("later");
    const second = sdk.subscribe(null, { store, checkpoints: true });
    assert.deepEqual(marked(await second.events.atLeast(4, 60_000), "later"), PARTITIONS);
    assert.equal(second.events.all.length, 4, "it read again what was checkpointed");
  }
}

async function blobStore() {
  if (!process.env.AZURITE_CONNECTION_STRING) {
    throw new Skipped("Azurite is not installed.");
  }
  const { BlobCheckpointStore } = requireHere("@azure/eventhubs-checkpointstore-blob");
  const { ContainerClient } = requireHere("@azure/storage-blob");
  const container = new ContainerClient(process.env.AZURITE_CONNECTION_STRING, `c${randomUUID()}`);
  await container.create();
  return new BlobCheckpointStore(container);
}

await runCases({ ...shared, ...(transport === "websocket" && overWebSocket), ...(generation === 2 ? of2 : since5) });
