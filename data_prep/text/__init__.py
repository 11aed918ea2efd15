"""Pure functions on text, one step of preparation a module; none reads a file or starts a process of its own accord."""
