"""Integrations with other systems, each an optional extra."""
