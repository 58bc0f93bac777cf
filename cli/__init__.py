"""The woh-index command line."""
