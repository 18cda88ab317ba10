"""AMQP clients: connections, their links, and the nodes these end in."""
