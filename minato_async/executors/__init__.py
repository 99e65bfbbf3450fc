"""Executors: what runs steps. They know workers and jobs, and nothing of batches."""
