"""The measurements of scripts.bench: this project and other libraries, which take turns in one process."""
