"""AMQP 1.0 without I/O, both roles: bytes in, events out, time passed in.

Nothing here depends on Event Hubs, sockets or a clock. Bottom up: ``types`` (values), ``errors``,
``encode``/``decode``, ``performatives``, ``message`` and ``sasl`` (composite values), ``frames`` (the byte
stream), ``states`` (transition tables), and the engine in ``link``, ``session`` and ``connection``, which
reports ``events``.
"""
