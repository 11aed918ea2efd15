"""The code that scripts.bench times: this project's and its peers', which take turns in one process."""
