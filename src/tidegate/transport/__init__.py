"""Asyncio drivers of the pure cores: byte streams, the AMQP driver, supervised tasks, the system clock.

Here asyncio begins; nothing below knows of it, and nothing here knows what the bytes mean.
"""
