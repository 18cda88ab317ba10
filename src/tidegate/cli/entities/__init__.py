"""Commands that administer a service: event hubs, consumer groups, policies, limits."""
