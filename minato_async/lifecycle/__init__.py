"""The process around the loader: its end, its descriptors, its GIL."""
