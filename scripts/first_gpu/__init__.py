"""The work of scripts/first_gpu.sh: every check that needs a GPU, section by section, and a page of their results."""
