"""Tasks, methods and partitions: their interfaces, training and scoring; loads tasks and methods by name."""
