"""fairseq's commands, and what goes into them and comes out: devices, data, checkpoints, logs."""
