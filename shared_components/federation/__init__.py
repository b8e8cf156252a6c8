"""A federation without transport: server and site as plain Python. `shared_components.flare` carries the messages."""
