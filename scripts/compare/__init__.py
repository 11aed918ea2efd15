"""A comparison of configurations: their runs, a table with intervals, and verdicts on claims."""
