"""Functions on text, one step of preparation per module. They read only tables and models, and start no processes."""
