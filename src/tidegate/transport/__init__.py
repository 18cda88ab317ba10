"""Asyncio drivers of the pure cores: byte streams, the AMQP driver, supervised tasks, the system clock.

asyncio starts here: nothing below uses it, and nothing here knows what the bytes mean. What connections of
AMQP and HTTP, and the console, share is here too: admission, turns, the memory budget, addresses of peers.
"""
