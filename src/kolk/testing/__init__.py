"""Real twins of the outside world, for our tests and for those of users: clock, lossy disk, model, faults."""
