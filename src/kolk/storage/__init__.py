"""One bucket on disk, and the small durable tables beside it. No network, no sessions, no threads."""
