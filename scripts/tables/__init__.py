"""The paper's tables: what was published, what was measured here, and both as text, Markdown and CSV."""
