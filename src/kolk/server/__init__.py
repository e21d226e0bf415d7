"""The network front of an engine: transport, access, health, metrics, log. It has no logic of tables of its own."""
