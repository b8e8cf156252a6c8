"""What a site does: it enrols, trains a round, finishes, and says what leaves it before anything does."""
