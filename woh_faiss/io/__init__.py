"""Files as bytes and arrays: hostile .npz and .npy files read, and the one place that writes and renames."""
