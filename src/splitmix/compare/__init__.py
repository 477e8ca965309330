"""Many runs: comparing methods, tuning them, and counting what they cost."""
