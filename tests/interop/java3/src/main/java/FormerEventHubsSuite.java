import com.microsoft.azure.eventhubs.AuthorizationFailedException;
import com.microsoft.azure.eventhubs.ConnectionStringBuilder;
import com.microsoft.azure.eventhubs.EventData;
import com.microsoft.azure.eventhubs.EventDataBatch;
import com.microsoft.azure.eventhubs.EventHubClient;
import com.microsoft.azure.eventhubs.EventHubException;
import com.microsoft.azure.eventhubs.EventHubRuntimeInformation;
import com.microsoft.azure.eventhubs.EventPosition;
import com.microsoft.azure.eventhubs.IllegalEntityException;
import com.microsoft.azure.eventhubs.PartitionReceiver;
import com.microsoft.azure.eventhubs.PartitionRuntimeInformation;
import com.microsoft.azure.eventhubs.PartitionSender;
import com.microsoft.azure.eventhubs.PayloadSizeExceededException;
import com.microsoft.azure.eventhubs.ReceiverDisconnectedException;
import com.microsoft.azure.eventhubs.ReceiverOptions;
import com.microsoft.azure.eventhubs.TransportType;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Proxy;
import java.net.ProxySelector;
import java.net.SocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * Azure's Java SDK before the present one (azure-eventhubs) against the service, by one transport. It knows TLS
 * alone, and always uses ports 5671 and 443.
 */
public final class FormerEventHubsSuite {
    private static final String GROUP = EventHubClient.DEFAULT_CONSUMER_GROUP_NAME;
    private static final Duration WAIT = Duration.ofSeconds(30);
    /** The SDK would try an error that it takes for a passing one for a minute. */
    private static final Duration REFUSED = Duration.ofSeconds(15);

    private static final ScheduledExecutorService THREADS = Executors.newScheduledThreadPool(4);

    public static void main(String[] arguments) {
        Cases cases = new Cases();
        cases.run("send and receive", FormerEventHubsSuite::sendAndReceive);
        cases.run("send by partition key", FormerEventHubsSuite::sendByKey);
        cases.run("send to a partition", FormerEventHubsSuite::sendToPartition);
        cases.run("runtime information", FormerEventHubsSuite::runtimeInformation);
        cases.run("receive from each kind of position", FormerEventHubsSuite::positions);
        cases.run("epoch receivers", FormerEventHubsSuite::epochReceivers);
        cases.run("large events", FormerEventHubsSuite::largeEvents);
        cases.run("unknown partition", FormerEventHubsSuite::unknownPartition);
        cases.run("unknown hub", FormerEventHubsSuite::unknownHub);
        cases.run("wrong key", FormerEventHubsSuite::wrongKey);
        if (Service.TRANSPORT.equals("websocket")) {
            cases.run("through a proxy", FormerEventHubsSuite::throughProxy);
        }
        System.exit(0);
    }

    private static void sendAndReceive() throws Exception {
        EventHubClient client = client();
        Map<String, Long> ends = ends(client);
        EventData sent = event("one");
        sent.getProperties().put("text", "żółw");
        sent.getProperties().put("long", 1L << 40);
        client.sendSync(sent);
        EventDataBatch batch = client.createBatch();
        Cases.check(batch.tryAdd(event("two")) && batch.tryAdd(event("three")), "the batch is full");
        client.sendSync(batch);
        client.sendSync(List.of(event("four"), event("five")));
        List<EventData> events = since(client, ends);
        List<String> found = events.stream().map(FormerEventHubsSuite::body).sorted().toList();
        Cases.equal(List.of("five", "four", "one", "three", "two"), found, "bodies");
        Map<String, Object> properties =
                events.stream().filter(each -> body(each).equals("one")).findFirst().orElseThrow().getProperties();
        Cases.equal(Map.of("text", "żółw", "long", 1L << 40), new HashMap<>(properties), "properties");
        client.closeSync();
    }

    private static void sendByKey() throws Exception {
        EventHubClient client = client();
        long end = end(client, "2");
        client.sendSync(event("keyed"), "漢字");
        client.sendSync(List.of(event("too")), "漢字");
        // Where the service of Azure puts this key among four partitions.
        List<EventData> events = read(client, "2", EventPosition.fromSequenceNumber(end), 2);
        Cases.equal(List.of("keyed", "too"), events.stream().map(FormerEventHubsSuite::body).toList(), "bodies");
        Cases.equal("漢字", events.get(0).getSystemProperties().getPartitionKey(), "key");
        client.closeSync();
    }

    private static void sendToPartition() throws Exception {
        EventHubClient client = client();
        for (String partition : client.getRuntimeInformation().get().getPartitionIds()) {
            long end = end(client, partition);
            PartitionSender sender = client.createPartitionSenderSync(partition);
            sender.sendSync(event("to " + partition));
            EventData event = read(client, partition, EventPosition.fromSequenceNumber(end), 1).get(0);
            Cases.equal("to " + partition, body(event), "body");
            Cases.equal(end + 1, event.getSystemProperties().getSequenceNumber(), "sequence number");
            sender.closeSync();
        }
        client.closeSync();
    }

    private static void runtimeInformation() throws Exception {
        EventHubClient client = client();
        EventHubRuntimeInformation hub = client.getRuntimeInformation().get();
        Cases.equal(Service.HUB, hub.getPath(), "name");
        Cases.equal(4, hub.getPartitionCount(), "count of partitions");
        Cases.equal(List.of("0", "1", "2", "3"), Arrays.asList(hub.getPartitionIds()), "partitions");
        client.createPartitionSenderSync("3").sendSync(event("last"));
        PartitionRuntimeInformation partition = client.getPartitionRuntimeInformation("3").get();
        Cases.equal("3", partition.getPartitionId(), "id");
        Cases.equal(0L, partition.getBeginSequenceNumber(), "first sequence number");
        Cases.check(partition.getLastEnqueuedTimeUtc().isAfter(hub.getCreatedAt()), "last enqueued before the hub");
        ReceiverOptions options = new ReceiverOptions();
        options.setReceiverRuntimeMetricEnabled(true);
        PartitionReceiver receiver =
                client.createReceiverSync(GROUP, "3", EventPosition.fromStartOfStream(), options);
        receiver.receiveSync(1);
        long last = receiver.getRuntimeInformation().getLastEnqueuedSequenceNumber();
        Cases.equal(partition.getLastEnqueuedSequenceNumber(), last, "last sequence number, told with events");
        client.closeSync();
    }

    private static void positions() throws Exception {
        EventHubClient client = client();
        long end = end(client, "1");
        PartitionSender sender = client.createPartitionSenderSync("1");
        for (int number = 0; number < 3; number++) {
            sender.sendSync(event("p" + number));
            Thread.sleep(5); // Event Hubs' times are whole milliseconds.
        }
        EventData second = read(client, "1", EventPosition.fromSequenceNumber(end), 3).get(1);
        EventData.SystemProperties place = second.getSystemProperties();
        Map<EventPosition, String> positions = new HashMap<>();
        positions.put(EventPosition.fromSequenceNumber(place.getSequenceNumber()), "p2");
        positions.put(EventPosition.fromSequenceNumber(place.getSequenceNumber(), true), "p1");
        positions.put(EventPosition.fromOffset(place.getOffset()), "p2");
        positions.put(EventPosition.fromOffset(place.getOffset(), true), "p1");
        positions.put(EventPosition.fromEnqueuedTime(place.getEnqueuedTime().minusMillis(1)), "p1");
        for (Map.Entry<EventPosition, String> position : positions.entrySet()) {
            String found = body(read(client, "1", position.getKey(), 1).get(0));
            Cases.equal(position.getValue(), found, "first at " + position.getKey());
        }
        PartitionReceiver latest = client.createReceiverSync(GROUP, "1", EventPosition.fromEndOfStream());
        CompletableFuture<Iterable<EventData>> received = latest.receive(1);
        sender.sendSync(event("new"));
        Cases.equal("new", body(received.get().iterator().next()), "first from the end");
        client.closeSync();
    }

    private static void epochReceivers() throws Exception {
        EventHubClient client = client();
        client.createPartitionSenderSync("0").sendSync(event("x"));
        EventPosition start = EventPosition.fromStartOfStream();
        PartitionReceiver low = client.createEpochReceiverSync(GROUP, "0", start, 1);
        Cases.check(low.receiveSync(1) != null, "nothing came");
        PartitionReceiver high = client.createEpochReceiverSync(GROUP, "0", start, 2);
        Cases.check(high.receiveSync(1) != null, "nothing came");
        disconnected(
                () -> {
                    // What it had fetched before comes first.
                    while (low.receiveSync(100) != null) {}
                });
        disconnected(() -> client.createEpochReceiverSync(GROUP, "0", start, 1).receiveSync(1));
        disconnected(() -> client.createReceiverSync(GROUP, "0", start).receiveSync(1));
        client.closeSync();
    }

    private static void largeEvents() throws Exception {
        EventHubClient client = client();
        long end = end(client, "0");
        PartitionSender sender = client.createPartitionSenderSync("0");
        byte[] large = new byte[1_000_000];
        new Random(19).nextBytes(large);
        sender.sendSync(EventData.create(large));
        EventData event = read(client, "0", EventPosition.fromSequenceNumber(end), 1).get(0);
        Cases.check(Arrays.equals(large, event.getBytes()), "the body is another");
        EventData tooLarge = EventData.create(new byte[1_100_000]);
        refused(PayloadSizeExceededException.class, () -> sender.sendSync(tooLarge));
        client.closeSync();
    }

    private static void unknownPartition() throws Exception {
        EventHubClient client = client();
        Throwable sending =
                Cases.refusal(REFUSED, () -> client.createPartitionSenderSync("9").sendSync(event("x")));
        invalidPartition(sending);
        EventPosition start = EventPosition.fromStartOfStream();
        Throwable receiving =
                Cases.refusal(REFUSED, () -> client.createReceiverSync(GROUP, "9", start).receiveSync(1));
        invalidPartition(receiving);
        Cases.refusal(REFUSED, () -> client.getPartitionRuntimeInformation("9").get());
        client.closeSync();
    }

    private static void invalidPartition(Throwable error) {
        Cases.check(String.valueOf(error.getMessage()).contains("partition is invalid"), String.valueOf(error));
        Cases.check(!(error instanceof EventHubException known && known.getIsTransient()), "a retry is said to help");
    }

    private static void unknownHub() throws Exception {
        refused(
                IllegalEntityException.class,
                () -> client("no-such-hub", Service.part("SharedAccessKey")).sendSync(event("x")));
    }

    private static void wrongKey() throws Exception {
        refused(
                AuthorizationFailedException.class,
                () -> client(Service.HUB, "d3Jvbmc=").sendSync(event("x")));
    }

    private static void throughProxy() throws Exception {
        String[] place =
                Service.variable("TIDEGATE_PROXY")
                        .orElseThrow(() -> new Cases.Skipped("no proxy is given"))
                        .split(":");
        Proxy proxy = new Proxy(Proxy.Type.HTTP, new InetSocketAddress(place[0], Integer.parseInt(place[1])));
        ProxySelector before = ProxySelector.getDefault();
        ProxySelector.setDefault(
                new ProxySelector() {
                    @Override
                    public List<Proxy> select(URI address) {
                        return List.of(proxy);
                    }

                    @Override
                    public void connectFailed(URI address, SocketAddress tried, IOException error) {}
                });
        try {
            EventHubClient client = client();
            long end = end(client, "0");
            client.createPartitionSenderSync("0").sendSync(event("proxy"));
            EventData event = read(client, "0", EventPosition.fromSequenceNumber(end), 1).get(0);
            Cases.equal("proxy", body(event), "body");
            client.closeSync();
        } finally {
            ProxySelector.setDefault(before);
        }
    }

    private static EventHubClient client() throws Exception {
        return client(Service.HUB, Service.part("SharedAccessKey"));
    }

    private static EventHubClient client(String hub, String key) throws Exception {
        boolean isWebSocket = Service.TRANSPORT.equals("websocket");
        ConnectionStringBuilder address =
                new ConnectionStringBuilder()
                        .setEndpoint(URI.create("sb://" + Service.endpoint().getHost()))
                        .setEventHubName(hub)
                        .setSasKeyName(Service.part("SharedAccessKeyName"))
                        .setSasKey(key)
                        .setTransportType(isWebSocket ? TransportType.AMQP_WEB_SOCKETS : TransportType.AMQP);
        return EventHubClient.createFromConnectionStringSync(address.toString(), THREADS);
    }

    private static List<EventData> read(EventHubClient client, String partition, EventPosition position, int count)
            throws Exception {
        PartitionReceiver receiver = client.createReceiverSync(GROUP, partition, position);
        receiver.setReceiveTimeout(WAIT);
        List<EventData> events = new ArrayList<>();
        while (events.size() < count) {
            Iterable<EventData> some = receiver.receiveSync(count - events.size());
            Cases.check(some != null, events.size() + " of " + count + " events within " + WAIT);
            some.forEach(events::add);
        }
        receiver.closeSync();
        return events;
    }

    private static long end(EventHubClient client, String partition) throws Exception {
        return client.getPartitionRuntimeInformation(partition).get().getLastEnqueuedSequenceNumber();
    }

    /** Partition id → its last sequence number. */
    private static Map<String, Long> ends(EventHubClient client) throws Exception {
        Map<String, Long> ends = new TreeMap<>();
        for (String partition : client.getRuntimeInformation().get().getPartitionIds()) {
            ends.put(partition, end(client, partition));
        }
        return ends;
    }

    /** All events behind {@code ends}, partition by partition. */
    private static List<EventData> since(EventHubClient client, Map<String, Long> ends) throws Exception {
        List<EventData> events = new ArrayList<>();
        for (Map.Entry<String, Long> last : ends(client).entrySet()) {
            long end = ends.get(last.getKey());
            if (last.getValue() > end) {
                EventPosition behind = EventPosition.fromSequenceNumber(end);
                events.addAll(read(client, last.getKey(), behind, (int) (last.getValue() - end)));
            }
        }
        return events;
    }

    private static void disconnected(Cases.Body body) {
        refused(ReceiverDisconnectedException.class, body);
    }

    private static void refused(Class<? extends Throwable> kind, Cases.Body body) {
        Throwable error = Cases.refusal(REFUSED, body);
        Cases.check(kind.isInstance(error), "expected " + kind.getSimpleName() + ", got " + error);
    }

    private static EventData event(String body) {
        return EventData.create(body.getBytes(StandardCharsets.UTF_8));
    }

    private static String body(EventData event) {
        return new String(event.getBytes(), StandardCharsets.UTF_8);
    }
}
