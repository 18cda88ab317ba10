"""AMQP 1.0 without I/O, both roles: bytes in, events out, time passed in.

Nothing here knows Event Hubs, a socket or a clock. From the ground up: ``types`` (values), ``errors``,
``encode``/``decode``, ``performatives``, ``message`` and ``sasl`` (composite values), ``frames`` (the byte
stream), ``states`` (transition tables), and the engine in ``link``, ``session`` and ``connection``, which
reports what happened as ``events``.
"""
