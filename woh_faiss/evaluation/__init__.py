"""How good codes are: measures, the streaming protocol, methods to compare with, the benchmark."""
