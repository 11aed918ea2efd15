"""The paper's tables: what was published, and what was measured here."""
