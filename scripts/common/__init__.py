"""Small helpers that every command of data_prep/ and scripts/ shares; they know nothing of the rest of the project."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
