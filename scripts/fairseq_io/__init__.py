"""fairseq's commands, their inputs and their outputs: devices, data, checkpoints, logs."""
