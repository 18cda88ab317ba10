import com.azure.messaging.eventhubs.EventHubClientBuilder;
import com.azure.messaging.eventhubs.EventProcessorClient;
import com.azure.messaging.eventhubs.EventProcessorClientBuilder;
import com.azure.messaging.eventhubs.LoadBalancingStrategy;
import com.azure.messaging.eventhubs.checkpointstore.blob.BlobCheckpointStore;
import com.azure.messaging.eventhubs.models.EventContext;
import com.azure.messaging.eventhubs.models.EventPosition;
import com.azure.storage.blob.BlobContainerAsyncClient;
import com.azure.storage.blob.BlobContainerClientBuilder;
import java.io.OutputStream;
import java.time.Duration;

/**
 * Processes events with the SDK's processor and its blob store until standard input ends, then stops it. Of each event
 * it prints partition and sequence number once the checkpoint behind it is written.
 *
 * <p>Processor CONNECTION_STRING EVENT_HUB STORAGE_CONNECTION_STRING CONTAINER
 */
public final class Processor {
    private static final Duration STOP = Duration.ofSeconds(20);

    public static void main(String[] arguments) throws Exception {
        BlobContainerAsyncClient container =
                new BlobContainerClientBuilder()
                        .connectionString(arguments[2])
                        .containerName(arguments[3])
                        .buildAsyncClient();
        EventProcessorClient processor =
                new EventProcessorClientBuilder()
                        .connectionString(arguments[0], arguments[1])
                        .consumerGroup(EventHubClientBuilder.DEFAULT_CONSUMER_GROUP_NAME)
                        .checkpointStore(new BlobCheckpointStore(container))
                        .initialPartitionEventPosition(partition -> EventPosition.earliest())
                        .loadBalancingStrategy(LoadBalancingStrategy.GREEDY)
                        .loadBalancingUpdateInterval(Duration.ofMillis(500))
                        // Well above the whole second in which Blob Storage tells the time.
                        .partitionOwnershipExpirationInterval(Duration.ofSeconds(6))
                        .processEvent(Processor::process)
                        .processError(error -> System.err.println(error.getThrowable()))
                        .buildEventProcessorClient();
        processor.start();
        System.in.transferTo(OutputStream.nullOutputStream());
        processor.stop(STOP);
        System.exit(0);
    }

    private static void process(EventContext context) {
        context.updateCheckpoint();
        System.out.println(
                context.getPartitionContext().getPartitionId() + "\t" + context.getEventData().getSequenceNumber());
    }
}
