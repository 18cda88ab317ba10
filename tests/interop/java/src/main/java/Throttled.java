import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.messaging.eventhubs.EventData;
import com.azure.messaging.eventhubs.EventHubClientBuilder;
import com.azure.messaging.eventhubs.EventHubProducerClient;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;

/**
 * Sends events one after the other, each of BYTES times its number. Of server-busy it hears only what the SDK gives
 * up on, and the SDK may try often.
 *
 * <p>Throttled CONNECTION_STRING EVENT_HUB COUNT BYTES
 */
public final class Throttled {
    public static void main(String[] arguments) {
        AmqpRetryOptions retries = new AmqpRetryOptions().setMaxRetries(60).setDelay(Duration.ofMillis(200));
        int count = Integer.parseInt(arguments[2]);
        byte[] body = new byte[Integer.parseInt(arguments[3])];
        try (EventHubProducerClient producer =
                new EventHubClientBuilder()
                        .connectionString(arguments[0], arguments[1])
                        .retryOptions(retries)
                        .buildProducerClient()) {
            for (int number = 0; number < count; number++) {
                Arrays.fill(body, (byte) number);
                producer.send(List.of(new EventData(body.clone())));
            }
        }
        System.exit(0);
    }
}
