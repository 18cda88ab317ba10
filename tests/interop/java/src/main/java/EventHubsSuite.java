import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.AmqpTransportType;
import com.azure.core.amqp.ProxyAuthenticationType;
import com.azure.core.amqp.ProxyOptions;
import com.azure.core.amqp.exception.AmqpErrorCondition;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.messaging.eventhubs.EventData;
import com.azure.messaging.eventhubs.EventDataBatch;
import com.azure.messaging.eventhubs.EventHubBufferedProducerClient;
import com.azure.messaging.eventhubs.EventHubBufferedProducerClientBuilder;
import com.azure.messaging.eventhubs.EventHubClientBuilder;
import com.azure.messaging.eventhubs.EventHubConsumerAsyncClient;
import com.azure.messaging.eventhubs.EventHubConsumerClient;
import com.azure.messaging.eventhubs.EventHubProducerClient;
import com.azure.messaging.eventhubs.EventHubProperties;
import com.azure.messaging.eventhubs.EventProcessorClient;
import com.azure.messaging.eventhubs.EventProcessorClientBuilder;
import com.azure.messaging.eventhubs.LoadBalancingStrategy;
import com.azure.messaging.eventhubs.PartitionProperties;
import com.azure.messaging.eventhubs.checkpointstore.blob.BlobCheckpointStore;
import com.azure.messaging.eventhubs.models.CreateBatchOptions;
import com.azure.messaging.eventhubs.models.EventPosition;
import com.azure.messaging.eventhubs.models.LastEnqueuedEventProperties;
import com.azure.messaging.eventhubs.models.PartitionEvent;
import com.azure.messaging.eventhubs.models.ReceiveOptions;
import com.azure.messaging.eventhubs.models.SendOptions;
import com.azure.storage.blob.BlobContainerAsyncClient;
import com.azure.storage.blob.BlobContainerClientBuilder;
import java.net.InetSocketAddress;
import java.net.Proxy;
import java.net.URI;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.function.IntFunction;
import java.util.regex.Matcher;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import reactor.core.Disposable;

/** Azure's Java SDK (azure-messaging-eventhubs) against the service, by one transport, as its users call it. */
public final class EventHubsSuite {
    private static final Duration WAIT = Duration.ofSeconds(30);
    /** The SDK would try an error that it takes for a passing one for about a minute. */
    private static final Duration REFUSED = Duration.ofSeconds(15);

    private static final String GROUP = EventHubClientBuilder.DEFAULT_CONSUMER_GROUP_NAME;

    public static void main(String[] arguments) {
        Cases cases = new Cases();
        cases.run("send a batch", EventHubsSuite::sendBatch);
        cases.run("send by partition key", EventHubsSuite::sendByKey);
        cases.run("send to a partition", EventHubsSuite::sendToPartition);
        cases.run("properties and system properties of events", EventHubsSuite::eventProperties);
        cases.run("buffered producer: 70 events with keys", EventHubsSuite::bufferedByKey);
        cases.run("buffered producer: 70 events without keys", EventHubsSuite::bufferedWithoutKey);
        cases.run("properties of hub and partitions", EventHubsSuite::hubProperties);
        cases.run("receive from each kind of position", EventHubsSuite::positions);
        cases.run("receive from the end", EventHubsSuite::latest);
        cases.run("receive asynchronously from all partitions", EventHubsSuite::receiveAll);
        cases.run("properties of the last enqueued event", EventHubsSuite::lastEnqueued);
        cases.run("owner levels", EventHubsSuite::ownerLevels);
        cases.run("processors share partitions and resume at checkpoints", EventHubsSuite::processors);
        cases.run("large events", EventHubsSuite::largeEvents);
        cases.run("unknown partition", EventHubsSuite::unknownPartition);
        cases.run("unknown hub", EventHubsSuite::unknownHub);
        cases.run("wrong key", EventHubsSuite::wrongKey);
        cases.run("shared access signature", EventHubsSuite::sharedAccessSignature);
        if (Service.TRANSPORT.equals("websocket")) {
            cases.run("through a proxy that asks for a password", EventHubsSuite::throughProxy);
        }
        System.exit(0);
    }

    private static void sendBatch() {
        try (EventHubProducerClient producer = builder().buildProducerClient()) {
            Map<String, Long> ends = ends(producer);
            EventDataBatch batch = producer.createBatch();
            for (int number = 0; number < 20; number++) {
                Cases.check(batch.tryAdd(new EventData("batch " + number)), "the batch is full");
            }
            producer.send(batch);
            List<String> expected = IntStream.range(0, 20).mapToObj(number -> "batch " + number).toList();
            Cases.equal(expected, bodies(since(producer, ends)), "bodies");
        }
    }

    private static void sendByKey() {
        try (EventHubProducerClient producer = builder().buildProducerClient()) {
            Map<String, Long> ends = ends(producer);
            EventDataBatch batch = producer.createBatch(new CreateBatchOptions().setPartitionKey("a"));
            batch.tryAdd(new EventData("1"));
            batch.tryAdd(new EventData("2"));
            producer.send(batch);
            producer.send(List.of(new EventData("3")), new SendOptions().setPartitionKey("a"));
            producer.send(List.of(new EventData("ż")), new SendOptions().setPartitionKey("漢字"));
            List<PartitionEvent> events = since(producer, ends);
            Map<String, Set<String>> partitions = new TreeMap<>();
            for (PartitionEvent event : events) {
                partitions
                        .computeIfAbsent(event.getData().getPartitionKey(), key -> new TreeSet<>())
                        .add(event.getPartitionContext().getPartitionId());
            }
            // As the service of Azure places them among four partitions.
            Cases.equal(Map.of("a", Set.of("0"), "漢字", Set.of("2")), partitions, "partitions by key");
            Cases.equal(List.of("1", "2", "3", "ż"), bodies(events), "bodies");
        }
    }

    private static void sendToPartition() {
        try (EventHubProducerClient producer = builder().buildProducerClient()) {
            for (String partition : producer.getPartitionIds()) {
                long end = producer.getPartitionProperties(partition).getLastEnqueuedSequenceNumber();
                producer.send(List.of(new EventData("to " + partition)), new SendOptions().setPartitionId(partition));
                PartitionEvent event = read(partition, after(end), 1).get(0);
                Cases.equal("to " + partition, event.getData().getBodyAsString(), "body");
                Cases.equal(end + 1, event.getData().getSequenceNumber(), "sequence number");
            }
        }
    }

    private static void eventProperties() {
        Map<String, Object> properties = new HashMap<>();
        properties.put("text", "żółw");
        properties.put("long", 1L << 40);
        properties.put("int", -7);
        properties.put("short", (short) 3);
        properties.put("double", 0.5);
        properties.put("yes", true);
        properties.put("uuid", UUID.fromString("00112233-4455-6677-8899-aabbccddeeff"));
        EventData sent = new EventData(new byte[] {0, (byte) 0xff});
        sent.getProperties().putAll(properties);
        sent.setContentType("application/octet-stream");
        sent.setMessageId("message");
        sent.setCorrelationId("correlation");
        try (EventHubProducerClient producer = builder().buildProducerClient()) {
            Instant before = Instant.now().minusSeconds(1);
            long end = producer.getPartitionProperties("0").getLastEnqueuedSequenceNumber();
            producer.send(List.of(sent), new SendOptions().setPartitionId("0"));
            EventData event = read("0", after(end), 1).get(0).getData();
            Cases.equal(properties, new HashMap<>(event.getProperties()), "properties");
            Cases.equal("application/octet-stream", event.getContentType(), "content type");
            Cases.equal("message", event.getMessageId(), "message id");
            Cases.equal("correlation", event.getCorrelationId(), "correlation id");
            Cases.equal(2, event.getBody().length, "length of the body");
            Cases.check(event.getEnqueuedTime().isAfter(before), "enqueued at " + event.getEnqueuedTime());
            Cases.check(event.getOffsetString() != null, "no offset");
        }
    }

    private static void bufferedByKey() {
        buffered(number -> new SendOptions().setPartitionKey("key " + number % 7));
    }

    private static void bufferedWithoutKey() {
        buffered(number -> new SendOptions());
    }

    /** 70 events arrive once each; those of a key in one partition, in order, with their key. */
    private static void buffered(IntFunction<SendOptions> options) {
        AtomicInteger sent = new AtomicInteger();
        List<Throwable> failures = new ArrayList<>();
        try (EventHubProducerClient looker = builder().buildProducerClient()) {
            Map<String, Long> ends = ends(looker);
            EventHubBufferedProducerClientBuilder built = new EventHubBufferedProducerClientBuilder();
            built.connectionString(connectionString(), Service.HUB)
                    .transportType(transportType())
                    .maxWaitTime(Duration.ofMillis(200))
                    .onSendBatchSucceeded(batch -> batch.getEvents().forEach(event -> sent.incrementAndGet()))
                    .onSendBatchFailed(batch -> failures.add(batch.getThrowable()));
            customEndpoint().ifPresent(built::customEndpointAddress);
            try (EventHubBufferedProducerClient producer = built.buildClient()) {
                for (int number = 0; number < 70; number++) {
                    producer.enqueueEvent(new EventData(String.format("%02d", number)), options.apply(number));
                }
                producer.flush();
            }
            Cases.equal(List.of(), failures, "batches that failed");
            Cases.equal(70, sent.get(), "events that the producer sent");
            Map<String, List<String>> byKey = new TreeMap<>();
            Map<String, Set<String>> partitions = new TreeMap<>();
            for (PartitionEvent event : since(looker, ends)) {
                String key = String.valueOf(event.getData().getPartitionKey());
                byKey.computeIfAbsent(key, each -> new ArrayList<>()).add(event.getData().getBodyAsString());
                partitions
                        .computeIfAbsent(key, each -> new TreeSet<>())
                        .add(event.getPartitionContext().getPartitionId());
            }
            Cases.equal(70, byKey.values().stream().mapToInt(List::size).sum(), "events in the hub");
            if (options.apply(0).getPartitionKey() != null) {
                Cases.equal(7, byKey.size(), "keys");
                byKey.values().forEach(each -> Cases.equal(each.stream().sorted().toList(), each, "order of a key"));
                partitions.values().forEach(each -> Cases.equal(1, each.size(), "partitions of a key"));
            }
        }
    }

    private static void hubProperties() {
        try (EventHubProducerClient producer = builder().buildProducerClient()) {
            EventHubProperties hub = producer.getEventHubProperties();
            Cases.equal(Service.HUB, hub.getName(), "name");
            Cases.equal(List.of("0", "1", "2", "3"), hub.getPartitionIds().stream().toList(), "partitions");
            Cases.check(hub.getCreatedAt().isAfter(Instant.now().minusSeconds(86_400)), "made at " + hub.getCreatedAt());
            producer.send(List.of(new EventData("x")), new SendOptions().setPartitionId("3"));
            PartitionProperties partition = producer.getPartitionProperties("3");
            Cases.equal("3", partition.getId(), "id");
            Cases.equal(0L, partition.getBeginningSequenceNumber(), "first sequence number");
            Cases.check(!partition.isEmpty(), "it is empty");
            Cases.check(partition.getLastEnqueuedOffset() != null, "no last offset");
            Cases.check(partition.getLastEnqueuedTime().isAfter(hub.getCreatedAt()), "last enqueued before the hub");
        }
    }

    private static void positions() throws Exception {
        try (EventHubProducerClient producer = builder().buildProducerClient()) {
            long end = producer.getPartitionProperties("1").getLastEnqueuedSequenceNumber();
            for (int number = 0; number < 3; number++) {
                producer.send(List.of(new EventData("p" + number)), new SendOptions().setPartitionId("1"));
                Thread.sleep(5); // Event Hubs' times are whole milliseconds.
            }
            List<PartitionEvent> all = read("1", after(end), 3);
            EventData second = all.get(1).getData();
            long number = second.getSequenceNumber();
            Map<EventPosition, String> positions = new HashMap<>();
            positions.put(EventPosition.fromSequenceNumber(number), "p2");
            positions.put(EventPosition.fromSequenceNumber(number, true), "p1");
            positions.put(EventPosition.fromOffsetString(second.getOffsetString()), "p2");
            positions.put(EventPosition.fromEnqueuedTime(second.getEnqueuedTime().minusMillis(1)), "p1");
            for (Map.Entry<EventPosition, String> position : positions.entrySet()) {
                String found = read("1", position.getKey(), 1).get(0).getData().getBodyAsString();
                Cases.equal(position.getValue(), found, "first at " + position.getKey());
            }
            EventData first = read("1", EventPosition.earliest(), 1).get(0).getData();
            Cases.equal(0L, first.getSequenceNumber(), "first of all");
        }
    }

    private static void latest() throws Exception {
        try (EventHubProducerClient producer = builder().buildProducerClient();
                EventHubConsumerAsyncClient consumer = builder().buildAsyncConsumerClient()) {
            long end = producer.getPartitionProperties("2").getLastEnqueuedSequenceNumber();
            CompletableFuture<PartitionEvent> received = new CompletableFuture<>();
            Disposable receiving =
                    consumer.receiveFromPartition("2", EventPosition.latest())
                            .subscribe(received::complete, received::completeExceptionally);
            // Nothing says when the link is open: send until something comes.
            waitUntil(
                    () -> {
                        producer.send(List.of(new EventData("new")), new SendOptions().setPartitionId("2"));
                        return received.isDone();
                    });
            receiving.dispose();
            Cases.check(received.get().getData().getSequenceNumber() > end, "an old event came");
        }
    }

    private static void receiveAll() {
        try (EventHubProducerClient producer = builder().buildProducerClient();
                EventHubConsumerAsyncClient consumer = builder().buildAsyncConsumerClient()) {
            for (String partition : producer.getPartitionIds()) {
                producer.send(List.of(new EventData("all")), new SendOptions().setPartitionId(partition));
            }
            long total = ends(producer).values().stream().mapToLong(last -> last + 1).sum();
            List<PartitionEvent> events = consumer.receive(true).take(total).collectList().block(WAIT);
            Set<String> places =
                    events.stream()
                            .map(each -> each.getPartitionContext().getPartitionId() + "/" + each.getData().getSequenceNumber())
                            .collect(Collectors.toSet());
            Cases.equal(total, (long) places.size(), "different events");
        }
    }

    private static void lastEnqueued() {
        try (EventHubProducerClient producer = builder().buildProducerClient();
                EventHubConsumerClient consumer = builder().buildConsumerClient()) {
            producer.send(List.of(new EventData("last")), new SendOptions().setPartitionId("0"));
            ReceiveOptions options = new ReceiveOptions().setTrackLastEnqueuedEventProperties(true);
            PartitionEvent event =
                    consumer.receiveFromPartition("0", 1, EventPosition.earliest(), WAIT, options).iterator().next();
            LastEnqueuedEventProperties last = event.getLastEnqueuedEventProperties();
            PartitionProperties partition = producer.getPartitionProperties("0");
            Cases.equal(partition.getLastEnqueuedSequenceNumber(), last.getSequenceNumber(), "sequence number");
            Cases.equal(partition.getLastEnqueuedOffset(), last.getOffsetString(), "offset");
            Cases.equal(partition.getLastEnqueuedTime(), last.getEnqueuedTime(), "time");
            Cases.check(last.getRetrievalTime() != null, "no time of retrieval");
        }
    }

    /** A higher owner level takes the partition; meanwhile a lower one, and none, are refused. */
    private static void ownerLevels() throws Exception {
        try (EventHubProducerClient producer = builder().buildProducerClient();
                EventHubConsumerAsyncClient consumer = builder().buildAsyncConsumerClient()) {
            producer.send(List.of(new EventData("x")), new SendOptions().setPartitionId("0"));
            Owner low = new Owner(consumer, 1L);
            low.hasRead.get(30, TimeUnit.SECONDS);
            Owner high = new Owner(consumer, 2L);
            high.hasRead.get(30, TimeUnit.SECONDS);
            linkStolen(low.error.get(30, TimeUnit.SECONDS));
            linkStolen(new Owner(consumer, 1L).error.get(30, TimeUnit.SECONDS));
            linkStolen(new Owner(consumer, null).error.get(30, TimeUnit.SECONDS));
            Cases.check(!high.error.isDone(), "the owner was disconnected");
            high.receiving.dispose();
        }
    }

    private static void linkStolen(Throwable error) {
        condition(AmqpErrorCondition.LINK_STOLEN, error);
    }

    /** A receiver of partition 0. Until it is disconnected it runs. */
    private static final class Owner {
        final CompletableFuture<PartitionEvent> hasRead = new CompletableFuture<>();
        final CompletableFuture<Throwable> error = new CompletableFuture<>();
        final Disposable receiving;

        Owner(EventHubConsumerAsyncClient consumer, Long level) {
            ReceiveOptions options = new ReceiveOptions();
            if (level != null) {
                options.setOwnerLevel(level);
            }
            receiving =
                    consumer.receiveFromPartition("0", EventPosition.earliest(), options)
                            .subscribe(hasRead::complete, error::complete);
        }
    }

    private static void processors() throws Exception {
        String storage =
                Service.variable("AZURITE_CONNECTION_STRING")
                        .orElseThrow(() -> new Cases.Skipped("needs Azurite: its connection string is not given"));
        BlobContainerAsyncClient container =
                new BlobContainerClientBuilder()
                        .connectionString(storage)
                        .containerName("java-" + UUID.randomUUID())
                        .buildAsyncClient();
        container.create().block(WAIT);
        try (EventHubProducerClient producer = builder().buildProducerClient()) {
            Map<String, Long> before = ends(producer);
            sendToEach(producer, 5);
            try (Processor first = new Processor(container, before);
                    Processor second = new Processor(container, before)) {
                waitUntil(() -> first.partitions.size() >= 2 && second.partitions.size() >= 2);
                Set<String> sent = places(before, ends(producer));
                waitUntil(() -> union(first.processed, second.processed).containsAll(sent));
            }
            Map<String, Long> middle = ends(producer);
            sendToEach(producer, 5);
            Set<String> later = places(middle, ends(producer));
            try (Processor third = new Processor(container, before)) {
                waitUntil(() -> third.processed.containsAll(later));
                Cases.equal(later, new TreeSet<>(third.processed), "processed behind the checkpoints");
            }
        }
    }

    private static void sendToEach(EventHubProducerClient producer, int count) {
        for (String partition : producer.getPartitionIds()) {
            EventDataBatch batch = producer.createBatch(new CreateBatchOptions().setPartitionId(partition));
            for (int number = 0; number < count; number++) {
                batch.tryAdd(new EventData("processed"));
            }
            producer.send(batch);
        }
    }

    /** Behind {@code before}, up to {@code last}: each event as partition/sequence number. */
    private static Set<String> places(Map<String, Long> before, Map<String, Long> last) {
        Set<String> places = new TreeSet<>();
        last.forEach(
                (partition, end) -> {
                    for (long number = before.get(partition) + 1; number <= end; number++) {
                        places.add(partition + "/" + number);
                    }
                });
        return places;
    }

    private static Set<String> union(Set<String> one, Set<String> other) {
        Set<String> all = new TreeSet<>(one);
        all.addAll(other);
        return all;
    }

    private static final class Processor implements AutoCloseable {
        final Set<String> partitions = new ConcurrentSkipListSet<>();
        final Set<String> processed = new ConcurrentSkipListSet<>();
        private final EventProcessorClient client;

        Processor(BlobContainerAsyncClient container, Map<String, Long> start) {
            EventProcessorClientBuilder built =
                    new EventProcessorClientBuilder()
                            .connectionString(connectionString(), Service.HUB)
                            .consumerGroup(GROUP)
                            .transportType(transportType())
                            .checkpointStore(new BlobCheckpointStore(container))
                            .initialPartitionEventPosition(partition -> after(start.get(partition)))
                            .loadBalancingStrategy(LoadBalancingStrategy.GREEDY)
                            .loadBalancingUpdateInterval(Duration.ofMillis(500))
                            .partitionOwnershipExpirationInterval(Duration.ofSeconds(6))
                            .processPartitionInitialization(
                                    context -> partitions.add(context.getPartitionContext().getPartitionId()))
                            .processEvent(
                                    context -> {
                                        context.updateCheckpoint();
                                        String partition = context.getPartitionContext().getPartitionId();
                                        processed.add(partition + "/" + context.getEventData().getSequenceNumber());
                                    })
                            .processError(error -> System.err.println(error.getThrowable()));
            customEndpoint().ifPresent(built::customEndpointAddress);
            client = built.buildEventProcessorClient();
            client.start();
        }

        @Override
        public void close() {
            client.stop(WAIT);
        }
    }

    private static void largeEvents() {
        try (EventHubProducerClient producer = builder().buildProducerClient()) {
            long end = producer.getPartitionProperties("0").getLastEnqueuedSequenceNumber();
            EventDataBatch batch = producer.createBatch(new CreateBatchOptions().setPartitionId("0"));
            Cases.equal(1_048_576, batch.getMaxSizeInBytes(), "largest batch");
            byte[] body = new byte[1_000_000];
            new Random(19).nextBytes(body);
            Cases.check(batch.tryAdd(new EventData(body)), "1,000,000 bytes do not fit into a batch");
            Cases.check(!batch.tryAdd(new EventData(new byte[100_000])), "more than the largest batch fits");
            producer.send(batch);
            EventData event = read("0", after(end), 1).get(0).getData();
            Cases.check(Arrays.equals(body, event.getBody()), "the body is another");
            List<EventData> tooLarge = List.of(new EventData(new byte[1_100_000]));
            condition(
                    AmqpErrorCondition.LINK_PAYLOAD_SIZE_EXCEEDED,
                    Cases.refusal(REFUSED, () -> producer.send(tooLarge, new SendOptions().setPartitionId("0"))));
        }
    }

    /** Sender, receiver and properties are refused at once, with the SDK's own options for retries. */
    private static void unknownPartition() {
        EventHubClientBuilder retrying = builder().retryOptions(new AmqpRetryOptions());
        try (EventHubProducerClient producer = retrying.buildProducerClient();
                EventHubConsumerAsyncClient consumer = retrying.buildAsyncConsumerClient()) {
            SendOptions to = new SendOptions().setPartitionId("9");
            condition(
                    AmqpErrorCondition.ARGUMENT_OUT_OF_RANGE_ERROR,
                    Cases.refusal(REFUSED, () -> producer.send(List.of(new EventData("x")), to)));
            condition(
                    AmqpErrorCondition.ARGUMENT_OUT_OF_RANGE_ERROR,
                    Cases.refusal(
                            REFUSED,
                            () -> consumer.receiveFromPartition("9", EventPosition.earliest()).blockFirst(WAIT)));
            Throwable error = Cases.refusal(REFUSED, () -> producer.getPartitionProperties("9"));
            Cases.check(error instanceof IllegalArgumentException, "properties: " + error);
        }
    }

    private static void unknownHub() {
        EventHubClientBuilder retrying = builder("no-such-hub").retryOptions(new AmqpRetryOptions());
        try (EventHubProducerClient producer = retrying.buildProducerClient()) {
            condition(AmqpErrorCondition.NOT_FOUND, Cases.refusal(REFUSED, producer::getEventHubProperties));
            List<EventData> events = List.of(new EventData("x"));
            condition(AmqpErrorCondition.NOT_FOUND, Cases.refusal(REFUSED, () -> producer.send(events)));
        }
    }

    private static void wrongKey() {
        String wrong = connectionString().replace(Service.part("SharedAccessKey"), "d3Jvbmc=");
        EventHubClientBuilder retrying = builder().connectionString(wrong, Service.HUB);
        try (EventHubProducerClient producer = retrying.retryOptions(new AmqpRetryOptions()).buildProducerClient()) {
            List<EventData> events = List.of(new EventData("x"));
            condition(AmqpErrorCondition.UNAUTHORIZED_ACCESS, Cases.refusal(REFUSED, () -> producer.send(events)));
        }
    }

    private static void sharedAccessSignature() throws Exception {
        String resource = "sb://" + Service.endpoint().getHost() + "/" + Service.HUB;
        String encoded = URLEncoder.encode(resource, StandardCharsets.UTF_8);
        long expiry = Instant.now().getEpochSecond() + 600;
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(Service.part("SharedAccessKey").getBytes(StandardCharsets.UTF_8), "HmacSHA256"));
        byte[] signature = mac.doFinal((encoded + "\n" + expiry).getBytes(StandardCharsets.UTF_8));
        String token =
                "SharedAccessSignature sr=" + encoded
                        + "&sig=" + URLEncoder.encode(Base64.getEncoder().encodeToString(signature), StandardCharsets.UTF_8)
                        + "&se=" + expiry
                        + "&skn=" + Service.part("SharedAccessKeyName");
        String signed =
                connectionString()
                        .replaceFirst("SharedAccessKeyName=[^;]*", Matcher.quoteReplacement("SharedAccessSignature=" + token))
                        .replaceFirst("SharedAccessKey=[^;]*;?", "");
        EventHubClientBuilder withSignature = builder().connectionString(signed, Service.HUB);
        try (EventHubProducerClient producer = withSignature.buildProducerClient()) {
            producer.send(List.of(new EventData("signed")));
            Cases.equal(Service.HUB, producer.getEventHubProperties().getName(), "name");
        }
    }

    private static void throughProxy() throws Exception {
        String[] place =
                Service.variable("TIDEGATE_PROXY")
                        .orElseThrow(() -> new Cases.Skipped("no proxy is given"))
                        .split("[:@]");
        ProxyOptions proxy =
                new ProxyOptions(
                        ProxyAuthenticationType.BASIC,
                        new Proxy(Proxy.Type.HTTP, new InetSocketAddress(place[2], Integer.parseInt(place[3]))),
                        place[0],
                        place[1]);
        try (EventHubProducerClient looker = builder().buildProducerClient();
                EventHubProducerClient producer = builder().proxyOptions(proxy).buildProducerClient();
                EventHubConsumerClient consumer = builder().proxyOptions(proxy).buildConsumerClient()) {
            long end = looker.getPartitionProperties("0").getLastEnqueuedSequenceNumber();
            producer.send(List.of(new EventData("proxy")), new SendOptions().setPartitionId("0"));
            PartitionEvent event = consumer.receiveFromPartition("0", 1, after(end), WAIT).iterator().next();
            Cases.equal("proxy", event.getData().getBodyAsString(), "body");
        }
    }

    private static EventHubClientBuilder builder() {
        return builder(Service.HUB);
    }

    private static EventHubClientBuilder builder(String hub) {
        EventHubClientBuilder builder =
                new EventHubClientBuilder()
                        .connectionString(connectionString(), hub)
                        .consumerGroup(GROUP)
                        .transportType(transportType())
                        .retryOptions(new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(WAIT));
        customEndpoint().ifPresent(builder::customEndpointAddress);
        return builder;
    }

    private static AmqpTransportType transportType() {
        return Service.TRANSPORT.equals("websocket") ? AmqpTransportType.AMQP_WEB_SOCKETS : AmqpTransportType.AMQP;
    }

    /** With TLS the SDK uses the standard ports of the string's host, or the address that is given beside it. */
    private static Optional<String> customEndpoint() {
        return Service.TRANSPORT.equals("plain")
                ? Optional.empty()
                : Optional.of("https://" + Service.endpoint().getAuthority());
    }

    private static String connectionString() {
        URI endpoint = Service.endpoint();
        String withoutPort = "sb://" + endpoint.getHost() + "/";
        boolean isPlain = Service.TRANSPORT.equals("plain");
        return isPlain
                ? Service.CONNECTION_STRING
                : Service.CONNECTION_STRING.replace(Service.part("Endpoint"), withoutPort);
    }

    private static EventPosition after(long sequenceNumber) {
        return sequenceNumber < 0 ? EventPosition.earliest() : EventPosition.fromSequenceNumber(sequenceNumber);
    }

    private static List<PartitionEvent> read(String partition, EventPosition position, int count) {
        try (EventHubConsumerClient consumer = builder().buildConsumerClient()) {
            List<PartitionEvent> events = new ArrayList<>();
            consumer.receiveFromPartition(partition, count, position, WAIT).forEach(events::add);
            Cases.equal(count, events.size(), "events within " + WAIT);
            return events;
        }
    }

    /** Partition id → its last sequence number. */
    private static Map<String, Long> ends(EventHubProducerClient producer) {
        Map<String, Long> ends = new TreeMap<>();
        for (String partition : producer.getPartitionIds()) {
            ends.put(partition, producer.getPartitionProperties(partition).getLastEnqueuedSequenceNumber());
        }
        return ends;
    }

    /** All events behind {@code ends}, partition by partition. */
    private static List<PartitionEvent> since(EventHubProducerClient producer, Map<String, Long> ends) {
        List<PartitionEvent> events = new ArrayList<>();
        ends(producer)
                .forEach(
                        (partition, last) -> {
                            long end = ends.get(partition);
                            if (last > end) {
                                events.addAll(read(partition, after(end), (int) (last - end)));
                            }
                        });
        return events;
    }

    private static List<String> bodies(List<PartitionEvent> events) {
        return events.stream().map(event -> event.getData().getBodyAsString()).toList();
    }

    private static void condition(AmqpErrorCondition expected, Throwable error) {
        Cases.check(error instanceof AmqpException, "expected " + expected + ", got " + error);
        Cases.equal(expected, ((AmqpException) error).getErrorCondition(), "condition of \"" + error.getMessage() + '"');
    }

    private static void waitUntil(BooleanSupplier isMet) throws InterruptedException {
        while (!isMet.getAsBoolean()) { // The case's time limit ends it.
            new CountDownLatch(1).await(100, TimeUnit.MILLISECONDS);
        }
    }
}
