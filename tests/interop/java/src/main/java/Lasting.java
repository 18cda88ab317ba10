import com.azure.core.amqp.exception.AmqpException;
import com.azure.messaging.eventhubs.EventData;
import com.azure.messaging.eventhubs.EventDataBatch;
import com.azure.messaging.eventhubs.EventHubClientBuilder;
import com.azure.messaging.eventhubs.EventHubConsumerAsyncClient;
import com.azure.messaging.eventhubs.EventHubProducerClient;
import com.azure.messaging.eventhubs.implementation.EventHubSharedKeyCredential;
import com.azure.messaging.eventhubs.models.CreateBatchOptions;
import com.azure.messaging.eventhubs.models.EventPosition;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import reactor.core.Disposable;

/**
 * A producer and a consumer with Azure's official Java SDK that run until they are killed, and print one JSON object
 * per line, which the suite long_runs judges: {"sent": N}, {"received": N}, {"error": ..., "code": ..., "of": ...}.
 * Settings are in the environment (tests/interop/suites/lasting.py).
 */
public final class Lasting {
    public static void main(String[] arguments) throws Exception {
        EventHubClientBuilder builder = new EventHubClientBuilder()
                .connectionString(System.getenv("TIDEGATE_CONNECTION_STRING"), System.getenv("TIDEGATE_HUB"))
                .consumerGroup(EventHubClientBuilder.DEFAULT_CONSUMER_GROUP_NAME);
        if (whole("TIDEGATE_TOKEN_S") > 0) {
            useShortLivedTokens(builder);
        }
        EventHubProducerClient producer = builder.buildProducerClient();
        Thread sender = new Thread(() -> send(producer));
        sender.setDaemon(true);
        sender.start();
        while (true) {
            try (EventHubConsumerAsyncClient consumer = builder.prefetchCount(10).buildAsyncConsumerClient()) {
                receive(consumer);
            } catch (RuntimeException error) {
                tellError("receive", error);
            }
            Thread.sleep(1000);
        }
    }

    private static void useShortLivedTokens(EventHubClientBuilder builder) {
        Pattern pattern = Pattern.compile("sb://([^:/;]+).*SharedAccessKeyName=([^;]+);SharedAccessKey=([^;]+)");
        Matcher found = pattern.matcher(System.getenv("TIDEGATE_CONNECTION_STRING"));
        if (!found.find()) {
            throw new IllegalArgumentException("The connection string has no key.");
        }
        Duration life = Duration.ofSeconds(whole("TIDEGATE_TOKEN_S"));
        EventHubSharedKeyCredential credential = new EventHubSharedKeyCredential(found.group(2), found.group(3), life);
        builder.credential(found.group(1), System.getenv("TIDEGATE_HUB"), credential);
    }

    /** Until an error: the client keeps its place over what it can mend by itself. */
    private static void receive(EventHubConsumerAsyncClient consumer) throws InterruptedException {
        CountDownLatch ended = new CountDownLatch(1);
        Disposable subscription = consumer.receiveFromPartition("0", EventPosition.earliest())
                .subscribe(
                        event -> {
                            tell("{\"received\": " + event.getData().getBodyAsString().trim() + "}");
                            sleep(whole("TIDEGATE_RECEIVE_DELAY_MS"));
                        },
                        error -> {
                            tellError("receive", error);
                            ended.countDown();
                        },
                        ended::countDown);
        ended.await();
        subscription.dispose();
    }

    private static void send(EventHubProducerClient producer) {
        String padding = " ".repeat(whole("TIDEGATE_EVENT_BYTES"));
        for (int number = 0; ; ) {
            try {
                EventDataBatch batch = producer.createBatch(new CreateBatchOptions().setPartitionId("0"));
                batch.tryAdd(new EventData(number + padding));
                producer.send(batch);
                tell("{\"sent\": " + number + "}");
                number++;
                sleep(whole("TIDEGATE_SEND_INTERVAL_MS"));
            } catch (RuntimeException error) {
                tellError("send", error);
                sleep(1000);
            }
        }
    }

    private static synchronized void tell(String line) {
        System.out.println(line);
    }

    private static void tellError(String of, Throwable error) {
        String code = error instanceof AmqpException && ((AmqpException) error).getErrorCondition() != null
                ? ((AmqpException) error).getErrorCondition().name()
                : error.getClass().getSimpleName();
        String text = String.valueOf(error.getMessage()).replaceAll("[\\p{Cntrl}\"\\\\]", " ");
        tell("{\"error\": \"" + text + "\", \"code\": \"" + code + "\", \"of\": \"" + of + "\"}");
    }

    private static int whole(String name) {
        return Integer.parseInt(System.getenv(name));
    }

    private static void sleep(int milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
