"""The Event Processor Host: leases, balancing and pumps."""
