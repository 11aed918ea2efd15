"""Pictures of trainings, of kernels and attention, and of scores; one file for each, and ``figure`` for their look."""
