"""Run one configuration from raw text to a row of a table: its stages, their folders, its record."""
