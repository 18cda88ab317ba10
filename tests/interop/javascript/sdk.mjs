// One interface to all generations of @azure/event-hubs: EventHubClient of 2.x, producers and consumers of 5.x and 6.x.
//
// Events go in and come out in one form: {body, properties, partitionKey, messageId, contentType, sequenceNumber,
// offset, enqueuedTime, raw}. A position is {earliest}, {latest}, {offset}, {sequenceNumber} or {enqueuedTime}; offsets
// and sequence numbers take `isInclusive`.

import tls from "node:tls";
import { Arrivals, connectionString, host, hub, later, parts, port, requireHere, transport } from "./cases.mjs";

const WebSocket = requireHere("ws");
const package_ = requireHere("@azure/event-hubs");
export const generation = Number(requireHere("@azure/event-hubs/package.json").version.split(".")[0]);

// 2.x knows no ports but 5671 and 443. Its WebSocket class is an option; for TLS the port is changed under it.
const connect = tls.connect;
tls.connect = (first, name, options, ...rest) =>
  first === 5671 ? connect(Number(port), name, { ...options, port: Number(port) }, ...rest) : connect(first, name, options, ...rest);

class WebSocketOf2 extends WebSocket {
  constructor(url, ...rest) {
    super(url.replace(":443/", `:${port}/`), ...rest);
  }
}

/** The SDK's client for `name`; key and token replace those of the environment. agent: of WebSockets.
 *
 * target: what constructors of 5.x and 6.x take before their options, instead of name, key and token.
 */
export function openSdk({ name = hub, key, token, agent, target, ...options } = {}) {
  const webSocket = generation === 2 ? WebSocketOf2 : WebSocket;
  const socket = transport === "websocket" ? { webSocket, webSocketConstructorOptions: { agent } } : undefined;
  const sdk =
    generation === 2
      ? new Sdk2(name, key, token, socket)
      : new Sdk(target ?? [withCredential(key, token), name], { webSocketOptions: socket, ...options });
  later(() => sdk.close());
  return sdk;
}

function withCredential(key, token) {
  const rest = connectionString.split(";").filter((part) => part && !/^SharedAccess/.test(part));
  const named = [`SharedAccessKeyName=${parts.SharedAccessKeyName}`, `SharedAccessKey=${key ?? parts.SharedAccessKey}`];
  return [...rest, ...(token ? [`SharedAccessSignature=${token}`] : named)].join(";");
}

/** 5.x and 6.x. */
class Sdk {
  constructor(target, options) {
    this.target = target;
    this.options = options;
  }

  get producer() {
    return (this.openProducer ??= new package_.EventHubProducerClient(...this.target, this.options));
  }

  consumer(group = "$Default", store = undefined, more = {}) {
    const consumer = new package_.EventHubConsumerClient(
      group,
      ...this.target,
      ...(store ? [store] : []),
      { ...this.options, loadBalancingOptions: { updateIntervalInMs: 500, partitionOwnershipExpirationIntervalInMs: 6000 }, ...more },
    );
    later(() => consumer.close());
    return consumer;
  }

  buffered(options) {
    return new package_.EventHubBufferedProducerClient(...this.target, { ...this.options, ...options });
  }

  send(events, options = {}) {
    return this.producer.sendBatch(events, options);
  }

  async hubProperties() {
    const said = await this.producer.getEventHubProperties();
    return { name: said.name, createdOn: said.createdOn, partitionIds: said.partitionIds };
  }

  async partitionProperties(partitionId) {
    const said = await this.producer.getPartitionProperties(partitionId);
    return { ...said, hub: said.eventHubName, lastTime: said.lastEnqueuedOnUtc };
  }

  /** Arrivals of events and errors from one partition, or with null from all. */
  subscribe(partitionId, { position, group, ownerLevel, trackLast = false, store, checkpoints = false } = {}) {
    const consumer = this.consumer(group, store);
    const found = { events: new Arrivals(), errors: new Arrivals(), last: undefined };
    const handlers = {
      async processEvents(events, context) {
        found.last = context.lastEnqueuedEventProperties;
        if (checkpoints && events.length > 0) {
          await context.updateCheckpoint(events.at(-1));
        }
        found.events.add(...events.map((event) => ({ ...fromSdk(event), partitionId: context.partitionId })));
      },
      async processError(error) {
        found.errors.add(error);
      },
    };
    const options = {
      maxBatchSize: 100, // The SDK's own is 1, before each of which it waits 20 ms.
      maxWaitTimeInSeconds: 1,
      startPosition: positionOf(position),
      trackLastEnqueuedEventProperties: trackLast,
      ...(ownerLevel !== undefined && { ownerLevel }),
    };
    const subscription = partitionId === null ? consumer.subscribe(handlers, options) : consumer.subscribe(partitionId, handlers, options);
    found.close = () => subscription.close();
    later(found.close);
    return found;
  }

  close() {
    return this.openProducer?.close();
  }
}

function positionOf({ offset, sequenceNumber, enqueuedTime, latest, isInclusive } = {}) {
  if (latest) {
    return package_.latestEventPosition;
  }
  if (offset !== undefined) {
    return { offset, isInclusive };
  }
  if (sequenceNumber !== undefined) {
    return { sequenceNumber, isInclusive };
  }
  return enqueuedTime === undefined ? package_.earliestEventPosition : { enqueuedOn: enqueuedTime };
}

function fromSdk(event) {
  return { ...event, enqueuedTime: event.enqueuedTimeUtc, raw: event.getRawAmqpMessage() };
}

/** 2.x. */
class Sdk2 {
  constructor(name, key, token, options) {
    const { EventHubClient } = package_;
    const namedKey = `SharedAccessKeyName=${parts.SharedAccessKeyName};SharedAccessKey=${key ?? parts.SharedAccessKey}`;
    const entity = `Endpoint=sb://${host}/;${namedKey}`;
    const tokenProvider = token && {
      tokenRenewalMarginInSeconds: 900,
      tokenValidTimeInSeconds: 3600,
      getToken: async () => ({ tokenType: "servicebus.windows.net:sastoken", token, expiry: Date.now() / 1000 + 3600 }),
    };
    this.client = token
      ? EventHubClient.createFromTokenProvider(host, name, tokenProvider, options)
      : EventHubClient.createFromConnectionString(entity, name, options);
  }

  async send(events, { partitionId, partitionKey } = {}) {
    const given = events.map(({ properties, messageId, contentType, correlationId, ...event }) => ({
      ...event,
      ...(partitionKey !== undefined && { partitionKey }),
      applicationProperties: properties,
      properties: { message_id: messageId, content_type: contentType, correlation_id: correlationId },
    }));
    await (given.length === 1 ? this.client.send(given[0], partitionId) : this.client.sendBatch(given, partitionId));
  }

  async hubProperties() {
    const said = await this.client.getHubRuntimeInformation();
    return { name: said.path, createdOn: said.createdAt, partitionIds: said.partitionIds };
  }

  async partitionProperties(partitionId) {
    const said = await this.client.getPartitionInformation(partitionId);
    return {
      ...said,
      hub: said.hubPath,
      lastEnqueuedSequenceNumber: said.lastSequenceNumber,
      lastTime: said.lastEnqueuedTimeUtc,
    };
  }

  subscribe(partitionId, { position, group, ownerLevel, trackLast } = {}) {
    const found = { events: new Arrivals(), errors: new Arrivals(), last: undefined };
    const handler = this.client.receive(
      partitionId,
      (event) => {
        found.last = trackLast ? { sequenceNumber: event.lastSequenceNumber, offset: event.lastEnqueuedOffset } : undefined;
        found.events.add({ ...fromSdk2(event), partitionId });
      },
      (error) => found.errors.add(error),
      this.receiving(position, { consumerGroup: group, epoch: ownerLevel, enableReceiverRuntimeMetric: trackLast }),
    );
    found.close = () => handler.stop();
    later(found.close);
    return found;
  }

  receiving(position, more = {}) {
    const { EventPosition } = package_;
    const { offset, sequenceNumber, enqueuedTime, latest, isInclusive } = position ?? {};
    let eventPosition = latest ? EventPosition.fromEnd() : EventPosition.fromStart();
    if (offset !== undefined) {
      eventPosition = EventPosition.fromOffset(offset, isInclusive);
    } else if (sequenceNumber !== undefined) {
      eventPosition = EventPosition.fromSequenceNumber(sequenceNumber, isInclusive);
    } else if (enqueuedTime !== undefined) {
      eventPosition = EventPosition.fromEnqueuedTime(enqueuedTime);
    }
    return { eventPosition, ...more };
  }

  close() {
    return this.client.close();
  }
}

export function fromSdk2(event) {
  const { message_id, content_type, correlation_id } = event.properties ?? {};
  return {
    ...event,
    properties: event.applicationProperties,
    messageId: message_id,
    contentType: content_type,
    correlationId: correlation_id,
    enqueuedTime: event.enqueuedTimeUtc,
    raw: event._raw_amqp_mesage,
  };
}
