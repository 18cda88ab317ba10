"""The protocols of the broker: AMQP as Event Hubs speaks it, and HTTP."""
