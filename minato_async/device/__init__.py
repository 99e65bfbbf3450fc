"""The last hop: batches are copied to a device while the step before works on others."""
