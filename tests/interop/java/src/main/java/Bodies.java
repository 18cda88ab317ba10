import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.messaging.eventhubs.EventHubClientBuilder;
import com.azure.messaging.eventhubs.EventHubConsumerAsyncClient;
import com.azure.messaging.eventhubs.models.EventPosition;
import java.time.Duration;
import java.util.Base64;

/**
 * Prints the body of each of a partition's first events, in base64.
 *
 * <p>Bodies CONNECTION_STRING EVENT_HUB COUNT
 */
public final class Bodies {
    private static final Duration WAIT = Duration.ofSeconds(30);

    public static void main(String[] arguments) {
        EventHubClientBuilder builder =
                new EventHubClientBuilder()
                        .connectionString(arguments[0], arguments[1])
                        .consumerGroup(EventHubClientBuilder.DEFAULT_CONSUMER_GROUP_NAME)
                        .retryOptions(new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(WAIT));
        try (EventHubConsumerAsyncClient consumer = builder.buildAsyncConsumerClient()) {
            consumer.receiveFromPartition("0", EventPosition.earliest())
                    .take(Long.parseLong(arguments[2]))
                    .map(event -> Base64.getEncoder().encodeToString(event.getData().getBody()))
                    .collectList()
                    .block(WAIT)
                    .forEach(System.out::println);
        }
        System.exit(0);
    }
}
