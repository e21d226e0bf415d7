"""What crosses the socket: messages, rows and errors as bytes. Knows neither client nor server."""
