"""A comparison of configurations: their runs, and a table with intervals."""
