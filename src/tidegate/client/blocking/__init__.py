"""Clients for threads without an event loop. Each call runs a coroutine on one loop per process."""
