"""What is learned: one kind of task per file."""
