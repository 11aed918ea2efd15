"""The sides that scripts.bench times: this project's code beside its peers, interleaved in one process."""
