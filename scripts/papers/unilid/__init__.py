"""UniLID: language identification with a UnigramLM distribution per language."""
