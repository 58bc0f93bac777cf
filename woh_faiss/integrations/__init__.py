"""Other people's systems, each an optional extra."""
