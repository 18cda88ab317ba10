// Cases of rhea, a generic AMQP 1.0 client that knows nothing of Event Hubs.

import { randomBytes } from "node:crypto";
import { Arrivals, assert, host, hub, later, parts, port, requireHere, runCases, sasToken, transport, within } from "./cases.mjs";

const rhea = requireHere("rhea");
const { types, message } = rhea;
const WebSocket = requireHere("ws");

const GROUP = `${hub}/ConsumerGroups/$Default`;
const SELECTOR = "apache.org:selector-filter:string";
const BATCH_FORMAT = 0x80013700;
const MOST = 2 ** 32 - 1;
const PLAIN = { username: parts.SharedAccessKeyName, password: parts.SharedAccessKey };
const SETTLEMENT = { unsettled: 0, settled: 1 }; // snd-settle-mode, AMQP 1.0 part 2 section 2.8.2

/** The first of `good` on `emitter`; throws the error of the first of `bad`, whichever comes first. */
function first(emitter, good, bad = []) {
  const met = new Promise((resolve, reject) => {
    good.forEach((name) => emitter.once(name, resolve));
    bad.forEach((name) => emitter.once(name, (context) => reject(errorOf(context))));
  });
  return within(20_000, good.join(" or "), met);
}

function errorOf(context) {
  const error = context.receiver?.error ?? context.sender?.error ?? context.session?.error ?? context.connection?.error ?? context.error;
  return Object.assign(new Error(error?.description ?? error?.message ?? "closed without an error"), { condition: error?.condition });
}

/** An open connection, by SASL PLAIN with the namespace's key unless `options` say another. */
async function connect(options = PLAIN) {
  const container = rhea.create_container();
  const way = {
    plain: {},
    tls: { transport: "tls" },
    websocket: {
      connection_details: container.websocket_connect(WebSocket)(`wss://${host}:${port}/$servicebus/websocket`, ["AMQPWSB10"], {}),
    },
  }[transport];
  const connection = container.connect({ host, port: Number(port), hostname: host, reconnect: false, ...way, ...options });
  later(() => connection.close());
  const bad = ["connection_error", "connection_close", "disconnected", "protocol_error", "error"];
  connection.failures = new Arrivals();
  bad.forEach((name) => connection.on(name, (context) => connection.failures.add(errorOf(context)))); // unheard, they end the process
  await first(connection, ["connection_open"], bad);
  ["session_error", "sender_error", "receiver_error"].forEach((name) => connection.on(name, () => undefined));
  return connection;
}

async function openSession(connection, change = () => undefined) {
  const session = connection.create_session();
  change(session);
  session.begin();
  await first(session, ["session_open"], ["session_error", "session_close"]);
  return session;
}

async function openSender(on, address, options = {}) {
  const sender = on.open_sender({ target: { address }, ...options });
  const sendable = first(sender, ["sendable"], ["sender_error"]);
  await sendable;
  return sender;
}

/** What came over the link, in `arrivals`. position: a sequence number to start behind, or a whole filter. */
async function openReceiver(on, partitionId, position, { source = {}, ...options } = {}) {
  const filter = typeof position === "number" ? selector(`amqp.annotation.x-opt-sequence-number > '${position}'`) : position;
  const receiver = on.open_receiver({ source: { address: `${GROUP}/Partitions/${partitionId}`, filter, ...source }, ...options });
  receiver.arrivals = new Arrivals();
  receiver.on("message", (context) => receiver.arrivals.add(context));
  const refusal = first(receiver, [], ["receiver_error"]);
  refusal.catch(() => undefined);
  await first(receiver, ["receiver_open"], ["receiver_error"]);
  if (!receiver.source?.address) {
    await refusal; // which attaches first: AMQP 1.0 part 2 section 2.6.3
  }
  return receiver;
}

const selector = (expression, key = SELECTOR) => ({ [key]: types.wrap_described(expression, types.wrap_symbol(SELECTOR)) });

/** The outcome of one message. */
async function send(sender, sent, tag, format) {
  const delivery = sender.send(sent, tag, format);
  const context = await first(sender, ["accepted", "rejected", "released", "sender_error"]);
  assert.equal(context.delivery, delivery, context.sender.error?.description);
  return delivery;
}

/** The answer of `address` to a request; reply-to is the target of a link on the same session. */
async function request(on, address, properties, body) {
  const replyTo = `reply-${randomBytes(4).toString("hex")}`;
  const receiver = on.open_receiver({ source: { address }, target: { address: replyTo }, name: replyTo });
  await first(receiver, ["receiver_open"], ["receiver_error"]);
  const sender = await openSender(on, address);
  const answer = first(receiver, ["message"], ["receiver_error"]);
  const id = randomBytes(4).toString("hex");
  sender.send({ message_id: id, reply_to: replyTo, application_properties: properties, body });
  const context = await answer;
  assert.equal(context.message.correlation_id, id);
  receiver.close();
  sender.close();
  return context.message;
}

function putToken(connection, name, token) {
  return request(connection, "$cbs", { operation: "put-token", type: "servicebus.windows.net:sastoken", name }, token);
}

/** Where the partition ends now: the number of its last event, -1 where it has none. */
async function end(connection, partitionId) {
  const asked = { operation: "READ", name: hub, type: "com.microsoft:partition", partition: partitionId };
  return (await request(connection, "$management", asked, [])).body.last_enqueued_sequence_number;
}

async function refused(condition, opening) {
  const error = await opening.then(() => null, (error) => error);
  assert.ok(error !== null, "it was accepted");
  assert.equal(error.condition, condition, error.message);
  return error;
}

function withWindow(frame, window) {
  return frame.incoming_window === undefined ? frame : Object.assign(frame, { incoming_window: window });
}

const READ_HUB = { operation: "READ", name: hub, type: "com.microsoft:eventhub" };

const bodyOf = ({ message: { body } }) => (body?.typecode === 0x75 ? body.content : body);
const annotations = ({ message: received }) => received.message_annotations;
const numbers = (count) => Array.from({ length: count }, (_, n) => n);

/** Messages of `sizes` through frames of `max_frame_size`, both ways. */
async function messagesOf(sizes, max_frame_size) {
  const connection = await connect({ ...PLAIN, max_frame_size });
  const from = await end(connection, "0");
  const sent = sizes.map((size) => randomBytes(size));
  const sender = await openSender(connection, `${hub}/Partitions/0`);
  for (const body of sent) {
    await send(sender, { body: message.data_section(body) });
  }
  const receiver = await openReceiver(connection, "0", from);
  const found = (await receiver.arrivals.atLeast(sent.length)).map(bodyOf);
  sent.forEach((body, index) => assert.equal(Buffer.compare(body, found[index]), 0, `${body.length} bytes`));
}

await runCases({
  async "SASL PLAIN needs no token"() {
    const connection = await connect();
    const from = await end(connection, "0");
    const sender = await openSender(connection, `${hub}/Partitions/0`);
    await send(sender, { body: "plain" });
    const receiver = await openReceiver(connection, "0", from);
    assert.equal(bodyOf((await receiver.arrivals.atLeast(1))[0]), "plain");
  },

  async "SASL PLAIN with a wrong key is refused"() {
    await refused("amqp:unauthorized-access", connect({ ...PLAIN, password: "wrong" }));
  },

  async "SASL ANONYMOUS and a token"() {
    const connection = await connect({ username: "anonymous" });
    const accepted = await putToken(connection, `amqp://${host}/${hub}`, sasToken(`sb://${host}/${hub}`));
    assert.equal(accepted.application_properties["status-code"], 202);
    await send(await openSender(connection, hub), { body: "x" });
  },

  async "SASL ANONYMOUS without a good token is refused"() {
    const connection = await connect({ username: "anonymous" });
    const answer = await putToken(connection, `amqp://${host}/${hub}`, sasToken(`sb://${host}/${hub}`, { key: "wrong" }));
    assert.equal(answer.application_properties["status-code"], 401);
    await refused("amqp:unauthorized-access", openSender(connection, hub));
  },

  async "a sender that is settled, and one that is not"() {
    const connection = await connect();
    const from = await end(connection, "0");
    for (const snd_settle_mode of [SETTLEMENT.settled, SETTLEMENT.unsettled]) {
      const sender = await openSender(connection, `${hub}/Partitions/0`, { snd_settle_mode });
      if (snd_settle_mode === SETTLEMENT.settled) {
        sender.send({ body: snd_settle_mode });
      } else {
        assert.equal((await send(sender, { body: snd_settle_mode })).remote_settled, true);
      }
    }
    const receiver = await openReceiver(connection, "0", from);
    assert.deepEqual((await receiver.arrivals.atLeast(2)).map(bodyOf), [1, 0]);
  },

  async "a batch, and a key on a partition's link"() {
    const connection = await connect();
    const from = await end(connection, "1");
    const sender = await openSender(connection, `${hub}/Partitions/1`);
    const keyed = { message_annotations: { "x-opt-partition-key": "the key" } };
    const inner = ["a", "b"].map((body) => message.encode({ body, ...keyed }));
    await send(sender, message.encode({ body: message.data_sections(inner), ...keyed }), undefined, BATCH_FORMAT);
    const found = await (await openReceiver(connection, "1", from)).arrivals.atLeast(2);
    assert.deepEqual(found.map(bodyOf), ["a", "b"]);
    assert.deepEqual(found.map((each) => annotations(each)["x-opt-partition-key"]), ["the key", "the key"]);
  },

  async "every type and section arrives as it was sent"() {
    const connection = await connect();
    const from = await end(connection, "1");
    const properties = {
      byte: types.wrap_byte(-1), ubyte: types.wrap_ubyte(1), short: types.wrap_short(-2), ushort: types.wrap_ushort(2),
      int: types.wrap_int(-3), uint: types.wrap_uint(3), long: types.wrap_long(-4), ulong: types.wrap_ulong(4),
      float: types.wrap_float(0.5), double: types.wrap_double(0.25), boolean: true, string: "żółw",
      symbol: types.wrap_symbol("symbol"), timestamp: types.wrap_timestamp(1_700_000_000_000),
      binary: types.wrap_binary(Buffer.from([0, 255])), uuid: types.wrap_uuid(randomBytes(16)), none: null,
    };
    const bodies = [
      { a: 1, b: [true, null] }, message.sequence_section([1, "two"]), message.data_section(Buffer.from([0, 255])),
      types.wrap_ulong(7), types.wrap_array([1, 2], 0x71, undefined), null,
    ];
    const rest = { message_id: types.wrap_uuid(randomBytes(16)), subject: "s", durable: true, ttl: 60_000 };
    const sender = await openSender(connection, `${hub}/Partitions/1`);
    for (const body of bodies) {
      await send(sender, { body, application_properties: properties, ...rest });
    }
    const found = await (await openReceiver(connection, "1", from)).arrivals.atLeast(bodies.length);
    // As this client reads its own bytes: nothing may differ but the annotations that the service adds.
    found.forEach(({ message: received }, index) => {
      const expected = message.decode(message.encode({ body: bodies[index], application_properties: properties, ...rest }));
      for (const key of ["body", "application_properties", ...Object.keys(rest)]) {
        assert.deepEqual(received[key], expected[key], `${key} of ${index}`);
      }
    });
  },

  async "a footer, whose keys this client sends as strings, arrives in a body"() {
    const connection = await connect();
    const from = await end(connection, "1");
    await send(await openSender(connection, `${hub}/Partitions/1`), { body: "x", footer: { sum: 1 } });
    const [received] = await (await openReceiver(connection, "1", from)).arrivals.atLeast(1);
    assert.equal(message.decode(bodyOf(received)).footer.sum, 1);
  },

  async "infinite credit"() {
    const connection = await connect();
    const from = await end(connection, "2");
    for (const credit of [MOST, 2 ** 31]) {
      const receiver = await openReceiver(connection, "2", from, { credit_window: 0 });
      receiver.add_credit(credit);
      const sender = await openSender(connection, `${hub}/Partitions/2`);
      await send(sender, { body: credit });
      await receiver.arrivals.atLeast(1);
      receiver.close();
    }
  },

  async "session windows of 2^32-1"() {
    const connection = await connect();
    const from = await end(connection, "2");
    for (const window of [MOST, 2 ** 31]) {
      const session = await openSession(connection, (session) => {
        const { output } = session;
        // rhea's own window is 2048: in begin and in every flow it names this one.
        session.output = (frame, ...rest) => output.call(session, withWindow(frame, window), ...rest);
      });
      const sender = await openSender(session, `${hub}/Partitions/2`);
      await send(sender, { body: window });
      const receiver = await openReceiver(session, "2", from, { credit_window: 0 });
      receiver.add_credit(10);
      await receiver.arrivals.atLeast(1);
      session.close();
    }
  },

  async "more events than windows and credit"() {
    const connection = await connect();
    const from = await end(connection, "2");
    const sender = await openSender(connection, `${hub}/Partitions/2`);
    const inner = (start) => numbers(500).map((n) => message.encode({ body: start + n }));
    for (let start = 0; start < 10_000; start += 500) {
      await send(sender, message.encode({ body: message.data_sections(inner(start)) }), undefined, BATCH_FORMAT);
    }
    const receiver = await openReceiver(connection, "2", from, { credit_window: 100 });
    assert.deepEqual((await receiver.arrivals.atLeast(10_000)).map(bodyOf), numbers(10_000));
  },

  async "draining credit"() {
    const connection = await connect();
    const receiver = await openReceiver(connection, "3", await end(connection, "3"), { credit_window: 0 });
    receiver.add_credit(10);
    receiver.drain_credit();
    await first(receiver, ["receiver_drained"], ["receiver_error"]);
    assert.equal(receiver.credit, 0);
  },

  async "unsettled deliveries are settled by what the receiver says"() {
    const connection = await connect();
    const from = await end(connection, "3");
    const sender = await openSender(connection, `${hub}/Partitions/3`);
    const says = ["accept", "release", "reject", "modified"];
    for (const body of says) {
      await send(sender, { body });
    }
    const options = { snd_settle_mode: SETTLEMENT.unsettled, autoaccept: false };
    const receiver = await openReceiver(connection, "3", from, options);
    const found = await receiver.arrivals.atLeast(4);
    for (const { delivery, message: { body } } of found) {
      assert.equal(delivery.remote_settled, false, `${body} came settled`);
      delivery[body]();
    }
    await send(sender, { body: "after" });
    assert.deepEqual((await receiver.arrivals.atLeast(5)).map(bodyOf), [...says, "after"]); // nothing again
  },

  async "rcv-settle-mode second is answered by the service"() {
    const connection = await connect();
    const from = await end(connection, "3");
    await send(await openSender(connection, `${hub}/Partitions/3`), { body: "x" });
    const options = { snd_settle_mode: SETTLEMENT.unsettled, rcv_settle_mode: 1, autoaccept: false };
    const receiver = await openReceiver(connection, "3", from, options);
    const [{ delivery }] = await receiver.arrivals.atLeast(1);
    const settled = first(receiver, ["settled"], ["receiver_error"]);
    delivery.accept();
    assert.equal((await settled).delivery, delivery);
  },

  async "autoaccept of the default mode"() {
    const connection = await connect();
    const from = await end(connection, "3");
    const sender = await openSender(connection, `${hub}/Partitions/3`);
    const receiver = await openReceiver(connection, "3", from, { credit_window: 4 });
    for (const body of numbers(20)) {
      await send(sender, { body });
    }
    const found = await receiver.arrivals.atLeast(20);
    assert.deepEqual(found.map(bodyOf), numbers(20));
    assert.ok(found.every(({ delivery }) => delivery.remote_settled));
  },

  async "selectors in every form"() {
    const connection = await connect();
    const from = await end(connection, "3");
    const sender = await openSender(connection, `${hub}/Partitions/3`);
    for (const body of ["a", "b"]) {
      await send(sender, { body });
    }
    const [a, b] = await (await openReceiver(connection, "3", from)).arrivals.atLeast(2);
    const { "x-opt-sequence-number": number, "x-opt-offset": offset, "x-opt-enqueued-time": time } = annotations(a);
    const name = "amqp.annotation.x-opt";
    for (const [filter, expected] of [
      [selector(`${name}-sequence-number > '${number}'`), "b"],
      [selector(`${name}-sequence-number >= "${number}"`), "a"],
      [selector(`${name}-sequence-number = ${number}`), "a"],
      [selector(`${name}-offset > '${offset}'`), "b"],
      [selector(`${name}-offset >= '${offset}'`), "a"],
      [selector(`AMQP.Annotation.X-OPT-OFFSET >= "${offset}"`), "a"],
      [selector(`${name}-enqueued-time > '${Number(time) - 1}'`), "a"],
      [selector(`${name}-sequence-number > '${number}' AND ${name}-enqueued-time >= '${Number(time)}'`), "b"],
      [rhea.filter.selector(`${name}-sequence-number > '${number}'`), "b"], // of the key jms-selector
    ]) {
      const receiver = await openReceiver(connection, "3", filter);
      const [event] = await receiver.arrivals.atLeast(1);
      assert.equal(bodyOf(event), expected, JSON.stringify(filter));
      receiver.close();
    }
    assert.equal(bodyOf(b), "b");
  },

  async "filters that are not in force are not in the answer"() {
    const connection = await connect();
    const unknown = { "example:unknown": types.wrap_described("x", types.wrap_symbol("example:unknown")) };
    const filter = { ...selector("amqp.annotation.x-opt-offset > '@latest'"), ...unknown };
    const receiver = await openReceiver(connection, "3", filter);
    assert.deepEqual(Object.keys(receiver.source.filter), [SELECTOR]);
  },

  async "a filter that is not understood is refused"() {
    await openReceiver(await connect(), "3", selector("colour = 'red'")).then(
      () => assert.fail("it was accepted"),
      (error) => assert.match(error.condition, /amqp:(invalid-field|not-implemented)|argument-error/),
    );
  },

  async "a second link of the same name steals the first"() {
    const connection = await connect();
    const from = await end(connection, "3");
    const [session, another] = [await openSession(connection), await openSession(connection)];
    const elsewhere = await openReceiver(another, "3", from, { name: "the name" });
    const stolen = await openReceiver(session, "3", from, { name: "the name" });
    const lost = first(stolen, ["receiver_error"]);
    stolen.remove = () => undefined; // rhea 3.0.5 forgets it by its name, the thief's, whose attach may come in a later read
    const thief = await openReceiver(session, "3", from, { name: "the name" });
    assert.equal(errorOf(await lost).condition, "amqp:link:stolen");
    await send(await openSender(connection, `${hub}/Partitions/3`), { body: "x" });
    await thief.arrivals.atLeast(1);
    await elsewhere.arrivals.atLeast(1); // names of different sessions do not meet
    assert.ok(connection.is_open());
  },

  async "an epoch takes the partition"() {
    const connection = await connect();
    const epoch = (value) => ({ properties: { "com.microsoft:epoch": types.wrap_long(value) } });
    const lower = await openReceiver(await openSession(connection), "3", -1, epoch(1));
    const lost = first(lower, ["receiver_error"]);
    await openReceiver(await openSession(connection), "3", -1, epoch(2));
    assert.equal(errorOf(await lost).condition, "amqp:link:stolen");
  },

  async "large messages through ordinary frames"() {
    await messagesOf([1_000_000, 10, 1_000_000, 0, 100_000]);
  },

  async "large messages through frames of 512 bytes"() {
    // rhea tops up its window of 2048 frames between messages only: a larger one would wait for ever.
    await messagesOf([400_000, 10, 400_000, 0, 100_000], 512);
  },

  async "frames below 512 bytes are refused"() {
    const opening = connect({ ...PLAIN, max_frame_size: 511 }).then(async ({ failures }) => {
      throw (await failures.atLeast(1))[0];
    });
    await refused("amqp:connection:framing-error", opening);
  },

  async "an event over the limit is refused"() {
    const sender = await openSender(await connect(), `${hub}/Partitions/0`);
    sender.send({ body: message.data_section(Buffer.alloc(1_100_000)) });
    const context = await first(sender, ["rejected", "sender_error", "accepted"]);
    const error = context.delivery?.remote_state?.error ?? context.sender.error;
    assert.equal(error?.condition, "amqp:link:message-size-exceeded");
  },

  async "management requests"() {
    const session = await openSession(await connect());
    const { body, application_properties } = await request(session, "$management", READ_HUB);
    assert.equal(application_properties["status-code"], 200);
    assert.deepEqual([body.name, body.partition_count], [hub, 4]);
    const unknown = await request(session, "$management", { ...READ_HUB, name: "no-such-hub" });
    assert.equal(unknown.application_properties["status-code"], 404);
  },

  async "a dynamic address is given or refused"() {
    const connection = await connect();
    const opening = openReceiver(connection, "0", undefined, { source: { address: undefined, dynamic: true } });
    const found = await opening.then((receiver) => receiver.source, (error) => error);
    if (found instanceof Error) {
      assert.match(found.condition, /:(argument-error|not-implemented|invalid-field)$/, found.message);
    } else {
      assert.ok(found.address, "a dynamic source without an address");
    }
    assert.equal((await request(connection, "$management", READ_HUB)).body.name, hub);
  },

  async "unknown hubs, partitions and groups"() {
    const connection = await connect();
    await refused("amqp:not-found", openSender(connection, "no-such-hub"));
    await refused("com.microsoft:argument-out-of-range", openSender(connection, `${hub}/Partitions/99`));
    await refused("com.microsoft:argument-out-of-range", openReceiver(connection, "99"));
    const source = { address: `${hub}/ConsumerGroups/none/Partitions/0` };
    await refused("amqp:not-found", openReceiver(connection, "0", undefined, { source }));
    assert.ok(connection.is_open());
  },

  async "many links and sessions of one connection"() {
    const connection = await connect();
    const from = await end(connection, "0");
    const sessions = await Promise.all(numbers(10).map(() => openSession(connection)));
    const five = (session) => numbers(5).map(() => openSender(session, `${hub}/Partitions/0`));
    const senders = await Promise.all(sessions.flatMap(five));
    await Promise.all(senders.map((sender, body) => send(sender, { body })));
    const receiver = await openReceiver(sessions[3], "0", from);
    assert.deepEqual((await receiver.arrivals.atLeast(50)).map(bodyOf).sort((a, b) => a - b), numbers(50));
  },

  async "a short idle time-out is kept alive"() {
    const connection = await connect({ ...PLAIN, idle_time_out: 1000 });
    let ended = false;
    connection.once("disconnected", () => (ended = true));
    await new Promise((resolve) => setTimeout(resolve, 5000)); // rhea closes after twice its time-out of silence
    assert.ok(!ended && connection.is_open());
    await send(await openSender(connection, hub), { body: "still here" });
  },

  async "links close and open again"() {
    const connection = await connect();
    for (const body of numbers(5)) {
      const sender = await openSender(connection, hub, { name: "again" });
      await send(sender, { body });
      const closed = first(sender, ["sender_close"]);
      sender.close();
      await closed;
    }
  },
});
