"""What the server does: who takes part, what it sends, which updates count, what it keeps and writes down."""
