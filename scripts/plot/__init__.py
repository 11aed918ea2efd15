"""Pictures of losses, of kernels and attention, and of scores: a module for each, and ``figure`` for their style."""
