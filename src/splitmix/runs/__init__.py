"""One run: its settings, rounds, folder and records; measured again, and bundled."""
