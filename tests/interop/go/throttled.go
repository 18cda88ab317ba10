package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	eventhubs "github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
)

// Sends events one after the other, each of BYTES times its number. Of server-busy it hears only what the SDK
// gives up on, and the SDK may try often.
func sendThrottled(ctx context.Context, arguments []string) error {
	count, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(arguments[3])
	if err != nil {
		return err
	}
	retries := eventhubs.RetryOptions{MaxRetries: 60, RetryDelay: 200 * time.Millisecond, MaxRetryDelay: time.Second}
	producer, err := eventhubs.NewProducerClientFromConnectionString(
		arguments[0], arguments[1], &eventhubs.ProducerClientOptions{RetryOptions: retries},
	)
	if err != nil {
		return err
	}
	defer producer.Close(ctx)
	s := &session{ctx: ctx, producer: producer}
	for number := range count {
		body := bytes.Repeat([]byte{byte(number)}, size)
		if err := s.sendBatch(nil, &eventhubs.EventData{Body: body}); err != nil {
			return fmt.Errorf("event %d: %w", number, err)
		}
	}
	return nil
}
