// Programs with Azure's official Go SDK that run until they are killed, and print one JSON object per line: what the
// suites mixed_group and long_runs judge. Their settings are in the environment (tests/interop/suites/lasting.py).
//
//	lasting member    a processor: {"partition": "0", "numbers": [sequence numbers]} before each checkpoint
//	lasting client    a producer and a consumer: {"sent": N}, {"received": N}, {"error": ..., "code": ..., "of": ...}
package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	eventhubs "github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2/checkpoints"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

var (
	connectionString = os.Getenv("TIDEGATE_CONNECTION_STRING")
	hub              = os.Getenv("TIDEGATE_HUB")
	lock             sync.Mutex
)

func main() {
	ctx := context.Background()
	if os.Args[1] == "member" {
		must(runMember(ctx))
		return
	}
	go send(ctx)
	receive(ctx)
}

func runMember(ctx context.Context) error {
	// Go does not fold the group to lower case in the names of blobs: here it is given as the others write it.
	consumer, err := eventhubs.NewConsumerClientFromConnectionString(connectionString, hub, "$default", nil)
	must(err)
	blobs, err := container.NewClientFromConnectionString(
		os.Getenv("AZURITE_CONNECTION_STRING"), os.Getenv("TIDEGATE_CONTAINER"), nil,
	)
	must(err)
	store, err := checkpoints.NewBlobStore(blobs, nil)
	must(err)
	processor, err := eventhubs.NewProcessor(consumer, store, &eventhubs.ProcessorOptions{
		LoadBalancingStrategy:       eventhubs.ProcessorStrategyGreedy,
		UpdateInterval:              time.Second,
		PartitionExpirationDuration: seconds("TIDEGATE_LEASE_S"),
		StartPositions:              eventhubs.StartPositions{Default: eventhubs.StartPosition{Earliest: to(true)}},
	})
	must(err)
	go func() {
		for partition := processor.NextPartitionClient(ctx); partition != nil; partition = processor.NextPartitionClient(ctx) {
			go process(ctx, partition)
		}
	}()
	return processor.Run(ctx)
}

func process(ctx context.Context, partition *eventhubs.ProcessorPartitionClient) {
	defer partition.Close(ctx)
	for {
		call, cancel := context.WithTimeout(ctx, time.Second)
		events, err := partition.ReceiveEvents(call, 50, nil)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			tellError("receive", err)
			return
		}
		if len(events) == 0 {
			continue
		}
		numbers := make([]int64, 0, len(events))
		for _, event := range events {
			numbers = append(numbers, event.SequenceNumber)
		}
		tell(map[string]any{"partition": partition.PartitionID(), "numbers": numbers})
		if err := partition.UpdateCheckpoint(ctx, events[len(events)-1], nil); err != nil {
			tellError("checkpoint", err)
			return
		}
	}
}

func send(ctx context.Context) {
	producer, err := eventhubs.NewProducerClientFromConnectionString(connectionString, hub, nil)
	must(err)
	padding := strings.Repeat(" ", whole("TIDEGATE_EVENT_BYTES"))
	for number := 0; ; {
		err := sendOne(ctx, producer, strconv.Itoa(number)+padding)
		if err != nil {
			tellError("send", err)
			time.Sleep(time.Second)
			continue
		}
		tell(map[string]any{"sent": number})
		number++
		time.Sleep(time.Duration(whole("TIDEGATE_SEND_INTERVAL_MS")) * time.Millisecond)
	}
}

func sendOne(ctx context.Context, producer *eventhubs.ProducerClient, body string) error {
	batch, err := producer.NewEventDataBatch(ctx, &eventhubs.EventDataBatchOptions{PartitionID: to("0")})
	if err != nil {
		return err
	}
	if err := batch.AddEventData(&eventhubs.EventData{Body: []byte(body)}, nil); err != nil {
		return err
	}
	return producer.SendEventDataBatch(ctx, batch, nil)
}

func receive(ctx context.Context) {
	consumer, err := eventhubs.NewConsumerClientFromConnectionString(connectionString, hub, "$Default", nil)
	must(err)
	for {
		if err := receiveAll(ctx, consumer); err != nil {
			tellError("receive", err)
		}
		time.Sleep(time.Second)
	}
}

// Until an error: the partition client keeps its place over what it can mend by itself.
func receiveAll(ctx context.Context, consumer *eventhubs.ConsumerClient) error {
	partition, err := consumer.NewPartitionClient("0", &eventhubs.PartitionClientOptions{
		StartPosition: eventhubs.StartPosition{Earliest: to(true)},
	})
	if err != nil {
		return err
	}
	defer partition.Close(ctx)
	for {
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		events, err := partition.ReceiveEvents(call, 10, nil)
		cancel()
		for _, event := range events {
			number, _ := strconv.Atoi(strings.TrimSpace(string(event.Body)))
			tell(map[string]any{"received": number})
			time.Sleep(time.Duration(whole("TIDEGATE_RECEIVE_DELAY_MS")) * time.Millisecond)
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

func tell(said map[string]any) {
	lock.Lock()
	defer lock.Unlock()
	must(json.NewEncoder(os.Stdout).Encode(said))
}

func tellError(of string, err error) {
	code := "none"
	var known *eventhubs.Error
	if errors.As(err, &known) {
		code = string(known.Code)
	}
	tell(map[string]any{"error": err.Error(), "code": code, "of": of})
}

func whole(name string) int {
	number, _ := strconv.Atoi(os.Getenv(name))
	return number
}

func seconds(name string) time.Duration {
	return time.Duration(whole(name)) * time.Second
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func to[T any](value T) *T {
	return &value
}
