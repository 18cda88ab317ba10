"""The Event Hubs dialect on top of AMQP: every byte format that other programs rely on.

Pure functions and values, used by both sides: names, addresses and position filters; the requests and
responses of ``$cbs`` and ``$management``; the table between errors and conditions; and events, encoded,
batched, stored and delivered.
"""
