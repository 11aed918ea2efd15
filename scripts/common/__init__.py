"""What every command of data_prep/ and scripts/ shares; imports nothing else of the project."""
