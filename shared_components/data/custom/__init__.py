"""A hospital's own data: any folders, with a table from mask values to class names (`ids:`)."""
