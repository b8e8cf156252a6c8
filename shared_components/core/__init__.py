"""What a task, a method and a partition are, and what trains and scores; loads tasks and methods by name."""
