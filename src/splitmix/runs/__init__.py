"""One run: its settings, rounds, folder and records; measured, bundled and served again."""
