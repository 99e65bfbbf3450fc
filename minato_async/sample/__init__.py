"""A sample: how a dataset and its functions become steps, and what a worker needs to run them."""
