package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	eventhubs "github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2/checkpoints"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

// Processes events with the SDK's Processor and its blob store until standard input ends, then stops in order:
// no event more, the last checkpoint written, the partitions given back. Of each event it prints partition and
// sequence number once the checkpoint behind it is written.
func runProcessor(ctx context.Context, arguments []string) error {
	consumer, err := eventhubs.NewConsumerClientFromConnectionString(
		arguments[0], arguments[1], eventhubs.DefaultConsumerGroup, nil,
	)
	if err != nil {
		return err
	}
	defer consumer.Close(ctx)
	blobs, err := container.NewClientFromConnectionString(arguments[2], arguments[3], nil)
	if err != nil {
		return err
	}
	store, err := checkpoints.NewBlobStore(blobs, nil)
	if err != nil {
		return err
	}
	processor, err := eventhubs.NewProcessor(consumer, store, &eventhubs.ProcessorOptions{
		LoadBalancingStrategy: eventhubs.ProcessorStrategyGreedy,
		UpdateInterval:        500 * time.Millisecond,
		// Well above the whole second in which Blob Storage tells the time.
		PartitionExpirationDuration: 6 * time.Second,
		StartPositions:              eventhubs.StartPositions{Default: eventhubs.StartPosition{Earliest: to(true)}},
	})
	if err != nil {
		return err
	}
	receiving, stopReceiving := context.WithCancel(ctx)
	running, stopRunning := context.WithCancel(ctx)
	defer stopRunning()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stopReceiving()
	}()
	processed := make(chan error, 1)
	go func() {
		err := processAll(ctx, receiving, processor)
		stopRunning()
		processed <- err
	}()
	err = processor.Run(running)
	stopReceiving()
	return errors.Join(err, <-processed)
}

// Each partition that comes is processed beside the others. Returns once receiving is over and all of them ended.
func processAll(ctx, receiving context.Context, processor *eventhubs.Processor) error {
	var (
		all    sync.WaitGroup
		lock   sync.Mutex
		failed error
	)
	for {
		partition := processor.NextPartitionClient(receiving)
		if partition == nil {
			break
		}
		all.Add(1)
		go func() {
			defer all.Done()
			defer partition.Close(ctx)
			if err := process(ctx, receiving, partition); err != nil {
				lock.Lock()
				failed = errors.Join(failed, err)
				lock.Unlock()
			}
		}()
	}
	all.Wait()
	return failed
}

func process(ctx, receiving context.Context, partition *eventhubs.ProcessorPartitionClient) error {
	for receiving.Err() == nil {
		// A call returns with as many events as it was asked for, or when its time is over. The time is long enough
		// for a busy machine to attach the link, which each call that is cancelled begins anew.
		call, cancel := context.WithTimeout(receiving, 10*time.Second)
		events, err := partition.ReceiveEvents(call, 1, nil)
		isOver := call.Err() != nil
		cancel()
		if err != nil && !isOver {
			if codeOf(err) == string(eventhubs.ErrorCodeOwnershipLost) {
				return nil
			}
			return err
		}
		if len(events) == 0 {
			continue
		}
		if err := partition.UpdateCheckpoint(ctx, events[len(events)-1], nil); err != nil {
			return err
		}
		for _, event := range events {
			fmt.Printf("%s\t%d\n", partition.PartitionID(), event.SequenceNumber)
		}
	}
	return nil
}
