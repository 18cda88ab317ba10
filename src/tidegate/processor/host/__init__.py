"""The Event Processor Host: leases, balancing, and the pumps that it runs."""
