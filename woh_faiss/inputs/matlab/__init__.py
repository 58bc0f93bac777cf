"""MATLAB files, of any version, as arrays and chunks."""
