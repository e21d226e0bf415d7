"""The outside world, injected: clock, random numbers, disk. Nothing above imports ``time`` or ``os`` for these."""
