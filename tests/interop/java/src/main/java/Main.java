import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.core.util.BinaryData;
import com.azure.messaging.eventhubs.EventData;
import com.azure.messaging.eventhubs.EventDataBatch;
import com.azure.messaging.eventhubs.EventHubClientBuilder;
import com.azure.messaging.eventhubs.EventHubConsumerAsyncClient;
import com.azure.messaging.eventhubs.EventHubProducerClient;
import com.azure.messaging.eventhubs.PartitionProperties;
import com.azure.messaging.eventhubs.models.CreateBatchOptions;
import com.azure.messaging.eventhubs.models.EventPosition;
import com.azure.messaging.eventhubs.models.PartitionEvent;
import com.azure.messaging.eventhubs.models.ReceiveOptions;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import reactor.core.Disposable;

/**
 * Sends and receives with Azure's official Java SDK, and prints what came, a line each: a Python test judges it.
 *
 * <p>Main CONNECTION_STRING EVENT_HUB [ENDPOINT]
 */
public final class Main {
    private static final Duration WAIT = Duration.ofSeconds(30);

    public static void main(String[] arguments) throws Exception {
        EventHubClientBuilder builder =
                new EventHubClientBuilder()
                        .connectionString(arguments[0], arguments[1])
                        .consumerGroup(EventHubClientBuilder.DEFAULT_CONSUMER_GROUP_NAME)
                        .retryOptions(new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(WAIT));
        if (arguments.length > 2) {
            builder.customEndpointAddress(arguments[2]);
        }
        try (EventHubProducerClient producer = builder.buildProducerClient()) {
            send(producer);
            tellProperties(producer);
        }
        try (EventHubConsumerAsyncClient consumer = builder.buildAsyncConsumerClient()) {
            List<PartitionEvent> events = read(consumer, EventPosition.earliest(), 4);
            events.forEach(event -> tell("event", event.getData()));
            read(consumer, EventPosition.fromSequenceNumber(1), 2).forEach(event -> tell("after 1", event.getData()));
            String offset = events.get(2).getData().getOffsetString();
            read(consumer, EventPosition.fromOffsetString(offset), 1).forEach(event -> tell("after offset", event.getData()));
            steal(consumer);
        }
        System.exit(0);
    }

    private static void send(EventHubProducerClient producer) {
        EventData first = new EventData("e0");
        first.setContentType("text/plain");
        first.setMessageId("message");
        first.setCorrelationId("correlation");
        first.getProperties().putAll(Map.of("text", "żółw", "number", 7L, "yes", true));
        send(producer, new CreateBatchOptions().setPartitionId("0"), first, new EventData("e1"), new EventData("e2"));
        // Goes to partition 0 of 2.
        send(producer, new CreateBatchOptions().setPartitionKey("a"), new EventData("keyed"));
    }

    private static void send(EventHubProducerClient producer, CreateBatchOptions options, EventData... events) {
        EventDataBatch batch = producer.createBatch(options);
        for (EventData event : events) {
            batch.tryAdd(event);
        }
        producer.send(batch);
    }

    private static void tellProperties(EventHubProducerClient producer) {
        System.out.println("partitions\t" + String.join(",", producer.getPartitionIds()));
        PartitionProperties partition = producer.getPartitionProperties("0");
        System.out.println(
                "partition\t"
                        + partition.getBeginningSequenceNumber()
                        + "\t"
                        + partition.getLastEnqueuedSequenceNumber()
                        + "\t"
                        + partition.isEmpty());
    }

    private static List<PartitionEvent> read(EventHubConsumerAsyncClient consumer, EventPosition position, int count) {
        return consumer.receiveFromPartition("0", position).take(count).collectList().block(WAIT);
    }

    /** A higher owner level takes the partition from a lower one. */
    private static void steal(EventHubConsumerAsyncClient consumer) throws Exception {
        CountDownLatch hasRead = new CountDownLatch(1);
        CompletableFuture<Throwable> stolen = new CompletableFuture<>();
        Disposable lower =
                consumer.receiveFromPartition("0", EventPosition.earliest(), new ReceiveOptions().setOwnerLevel(1L))
                        .subscribe(event -> hasRead.countDown(), stolen::complete);
        hasRead.await(WAIT.toSeconds(), TimeUnit.SECONDS);
        consumer.receiveFromPartition("0", EventPosition.earliest(), new ReceiveOptions().setOwnerLevel(2L))
                .take(1)
                .blockLast(WAIT);
        Throwable error = stolen.get(WAIT.toSeconds(), TimeUnit.SECONDS);
        String condition = error instanceof AmqpException amqp ? String.valueOf(amqp.getErrorCondition()) : "";
        System.out.println("stolen\t" + condition + "\t" + error.getMessage().replaceAll("\\s+", " "));
        lower.dispose();
    }

    private static void tell(String what, EventData event) {
        System.out.println(
                String.join(
                        "\t",
                        what,
                        BinaryData.fromBytes(event.getBody()).toString(),
                        String.valueOf(event.getSequenceNumber()),
                        String.valueOf(event.getPartitionKey()),
                        String.valueOf(event.getContentType()),
                        String.valueOf(event.getMessageId()),
                        String.valueOf(event.getCorrelationId()),
                        String.valueOf(new java.util.TreeMap<>(event.getProperties()))));
    }
}
