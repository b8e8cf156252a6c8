"""A hospital's own data: any folders, and a table from what is in its masks to classes of its own (`ids:`)."""
