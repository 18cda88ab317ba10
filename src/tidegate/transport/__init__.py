"""Asyncio drivers of the pure cores: byte streams, the AMQP driver, supervised tasks, the system clock.

No lower layer uses asyncio, and nothing here interprets the bytes. AMQP, HTTP and the console also share
admission, turns, the memory budget and peer addresses from here.
"""
