"""Event Processor Host: leases, balancing, pumps and checkpoints, against Tidegate and Azure Event Hubs."""
