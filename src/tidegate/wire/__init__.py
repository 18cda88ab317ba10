"""The formats shared with other programs: the Event Hubs dialect on top of AMQP.

Pure functions and values, used by both sides: names, addresses and position filters; the requests and
responses of ``$cbs`` and ``$management``; the one table between errors and conditions; and events, in
their encoded, batched, stored and delivered forms.
"""
