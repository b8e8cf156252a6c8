"""Pre-train networks on scenes that are rendered on demand."""
