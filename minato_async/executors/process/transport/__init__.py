"""How values travel between the parent and its worker processes. It knows nothing of jobs."""
