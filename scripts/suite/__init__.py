"""A comparison of configurations from its suite file to a page: trials, runs, statistics, verdicts."""
