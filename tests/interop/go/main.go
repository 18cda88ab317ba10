// Sends and receives with Azure's official Go SDK, and prints what came as one JSON object: a Python test judges it.
//
//	main CONNECTION_STRING EVENT_HUB [CA_FILE [websocket]]
//	main throttled CONNECTION_STRING EVENT_HUB COUNT BYTES
//	main bodies CONNECTION_STRING EVENT_HUB COUNT
//	main processor CONNECTION_STRING EVENT_HUB STORAGE_CONNECTION_STRING CONTAINER
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	eventhubs "github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/coder/websocket"
)

const allS = 60 * time.Second

type event struct {
	Body           string         `json:"body"`
	PartitionKey   *string        `json:"partition_key"`
	SequenceNumber int64          `json:"sequence_number"`
	Offset         string         `json:"offset"`
	EnqueuedTime   *time.Time     `json:"enqueued_time"`
	ContentType    *string        `json:"content_type"`
	MessageID      *string        `json:"message_id"`
	CorrelationID  any            `json:"correlation_id"`
	Properties     map[string]any `json:"properties"`
}

type report struct {
	EventHub     eventhubs.EventHubProperties  `json:"event_hub"`
	Partition    eventhubs.PartitionProperties `json:"partition"`
	Events       []event                       `json:"events"`
	FromSequence []event                       `json:"from_sequence_number"`
	FromOffset   []event                       `json:"from_offset"`
	FromTime     []event                       `json:"from_enqueued_time"`
	StolenCode   string                        `json:"stolen_code"`
	Stolen       string                        `json:"stolen"`
	Lower        string                        `json:"lower"`
	TooLarge     string                        `json:"too_large"`
	UnknownHub   string                        `json:"unknown_hub"`
}

type session struct {
	ctx      context.Context
	producer *eventhubs.ProducerClient
	consumer *eventhubs.ConsumerClient
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), allS)
	defer cancel()
	var err error
	switch os.Args[1] {
	case "throttled":
		err = sendThrottled(ctx, os.Args[2:])
	case "processor":
		err = runProcessor(ctx, os.Args[2:])
	case "bodies":
		err = printBodies(ctx, os.Args[2:])
	default:
		var found *report
		if found, err = run(ctx, os.Args[1:]); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(found)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) (*report, error) {
	connectionString, hub := arguments[0], arguments[1]
	var config *tls.Config
	var connect func(context.Context, eventhubs.WebSocketConnParams) (net.Conn, error)
	if len(arguments) > 2 {
		pem, err := os.ReadFile(arguments[2])
		if err != nil {
			return nil, err
		}
		// The SDK would take host:port for the name that the certificate must have.
		config = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
		config.RootCAs.AppendCertsFromPEM(pem)
	}
	if len(arguments) > 3 {
		connect = func(ctx context.Context, given eventhubs.WebSocketConnParams) (net.Conn, error) {
			options := &websocket.DialOptions{
				HTTPClient:   &http.Client{Transport: &http.Transport{TLSClientConfig: config}},
				Subprotocols: []string{"amqp"}, // as the SDK's documentation has it
			}
			line, _, err := websocket.Dial(ctx, given.Host, options)
			if err != nil {
				return nil, err
			}
			return websocket.NetConn(context.Background(), line, websocket.MessageBinary), nil
		}
	}
	retries := eventhubs.RetryOptions{MaxRetries: -1}
	producerOptions := &eventhubs.ProducerClientOptions{
		TLSConfig: config, RetryOptions: retries, NewWebSocketConn: connect,
	}
	producer, err := eventhubs.NewProducerClientFromConnectionString(connectionString, hub, producerOptions)
	if err != nil {
		return nil, err
	}
	defer producer.Close(ctx)
	consumer, err := eventhubs.NewConsumerClientFromConnectionString(
		connectionString, hub, eventhubs.DefaultConsumerGroup,
		&eventhubs.ConsumerClientOptions{TLSConfig: config, RetryOptions: retries, NewWebSocketConn: connect},
	)
	if err != nil {
		return nil, err
	}
	defer consumer.Close(ctx)
	s := &session{ctx, producer, consumer}
	found := &report{}
	for _, step := range []func(*report) error{s.send, s.properties, s.receive, s.positions, s.steal, s.tooLarge} {
		if err := step(found); err != nil {
			return nil, err
		}
	}
	stranger, err := eventhubs.NewProducerClientFromConnectionString(connectionString, "no-such-hub", producerOptions)
	if err != nil {
		return nil, err
	}
	defer stranger.Close(ctx)
	if _, err := stranger.NewEventDataBatch(ctx, nil); err != nil {
		found.UnknownHub = err.Error()
	}
	return found, nil
}

// One batch of three with everything on its first event, one of a key, and one of a kilobyte less than a megabyte.
func (s *session) send(*report) error {
	first := &eventhubs.EventData{
		Body:          []byte("e0"),
		ContentType:   to("text/plain"),
		MessageID:     to("message"),
		CorrelationID: "correlation",
		Properties:    map[string]any{"text": "żółw", "number": int64(7), "ratio": 0.5, "yes": true},
	}
	partition := &eventhubs.EventDataBatchOptions{PartitionID: to("0")}
	if err := s.sendBatch(partition, first, text("e1"), text("e2")); err != nil {
		return err
	}
	key := &eventhubs.EventDataBatchOptions{PartitionKey: to("a")} // partition 0 of 2
	if err := s.sendBatch(key, text("keyed")); err != nil {
		return err
	}
	return s.sendBatch(partition, &eventhubs.EventData{Body: make([]byte, 1_000_000)})
}

func (s *session) sendBatch(options *eventhubs.EventDataBatchOptions, events ...*eventhubs.EventData) error {
	batch, err := s.producer.NewEventDataBatch(s.ctx, options)
	if err != nil {
		return err
	}
	for _, event := range events {
		if err := batch.AddEventData(event, nil); err != nil {
			return err
		}
	}
	return s.producer.SendEventDataBatch(s.ctx, batch, nil)
}

func (s *session) properties(found *report) (err error) {
	if found.EventHub, err = s.producer.GetEventHubProperties(s.ctx, nil); err != nil {
		return err
	}
	found.Partition, err = s.consumer.GetPartitionProperties(s.ctx, "0", nil)
	return err
}

func (s *session) receive(found *report) (err error) {
	found.Events, err = s.read(eventhubs.StartPosition{Earliest: to(true)}, 5)
	if err == nil {
		found.Events[4].Body = fmt.Sprintf("%d bytes", len(found.Events[4].Body))
	}
	return err
}

func (s *session) positions(found *report) (err error) {
	if found.FromSequence, err = s.read(eventhubs.StartPosition{SequenceNumber: to(int64(1))}, 2); err != nil {
		return err
	}
	offset := found.Events[1].Offset
	if found.FromOffset, err = s.read(eventhubs.StartPosition{Offset: &offset, Inclusive: true}, 3); err != nil {
		return err
	}
	before := found.Events[0].EnqueuedTime.Add(-time.Minute)
	found.FromTime, err = s.read(eventhubs.StartPosition{EnqueuedTime: &before}, 1)
	return err
}

// A higher owner level takes the partition; a lower one is refused while the higher reads.
func (s *session) steal(found *report) error {
	earliest := eventhubs.StartPosition{Earliest: to(true)}
	first, err := s.open(earliest, to(int64(1)))
	if err != nil {
		return err
	}
	defer first.Close(s.ctx)
	if _, err := first.ReceiveEvents(s.ctx, 1, nil); err != nil {
		return err
	}
	second, err := s.open(earliest, to(int64(2)))
	if err != nil {
		return err
	}
	defer second.Close(s.ctx)
	if _, err := second.ReceiveEvents(s.ctx, 1, nil); err != nil {
		return err
	}
	for err == nil {
		_, err = first.ReceiveEvents(s.ctx, 10, nil)
	}
	found.StolenCode, found.Stolen = codeOf(err), err.Error()
	lower, err := s.open(earliest, to(int64(1)))
	if err != nil {
		return err
	}
	defer lower.Close(s.ctx)
	if _, err = lower.ReceiveEvents(s.ctx, 1, nil); err != nil {
		found.Lower = err.Error()
	}
	return nil
}

// The SDK lets an event into a batch up to the size that the service has announced.
func (s *session) tooLarge(found *report) error {
	batch, err := s.producer.NewEventDataBatch(s.ctx, nil)
	if err != nil {
		return err
	}
	if err := batch.AddEventData(&eventhubs.EventData{Body: make([]byte, 1_100_000)}, nil); err != nil {
		found.TooLarge = err.Error()
	}
	return nil
}

func (s *session) open(position eventhubs.StartPosition, level *int64) (*eventhubs.PartitionClient, error) {
	return s.consumer.NewPartitionClient(
		"0", &eventhubs.PartitionClientOptions{StartPosition: position, OwnerLevel: level},
	)
}

func (s *session) read(position eventhubs.StartPosition, count int) ([]event, error) {
	receiver, err := s.open(position, nil)
	if err != nil {
		return nil, err
	}
	defer receiver.Close(s.ctx)
	var events []event
	for len(events) < count {
		received, err := receiver.ReceiveEvents(s.ctx, count-len(events), nil)
		if err != nil {
			return nil, err
		}
		for _, one := range received {
			events = append(events, event{
				string(one.Body), one.PartitionKey, one.SequenceNumber, one.Offset, one.EnqueuedTime,
				one.ContentType, one.MessageID, one.CorrelationID, one.Properties,
			})
		}
	}
	return events, nil
}

// Prints the body of each of a partition's first events, in base64.
func printBodies(ctx context.Context, arguments []string) error {
	count, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	consumer, err := eventhubs.NewConsumerClientFromConnectionString(
		arguments[0], arguments[1], eventhubs.DefaultConsumerGroup, nil,
	)
	if err != nil {
		return err
	}
	defer consumer.Close(ctx)
	s := session{ctx: ctx, consumer: consumer}
	events, err := s.read(eventhubs.StartPosition{Earliest: to(true)}, count)
	for _, one := range events {
		fmt.Println(base64.StdEncoding.EncodeToString([]byte(one.Body)))
	}
	return err
}

func codeOf(err error) string {
	var known *eventhubs.Error
	if errors.As(err, &known) {
		return string(known.Code)
	}
	return fmt.Sprint(err)
}

func text(body string) *eventhubs.EventData {
	return &eventhubs.EventData{Body: []byte(body)}
}

func to[T any](value T) *T {
	return &value
}
