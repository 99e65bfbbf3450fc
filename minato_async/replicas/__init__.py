"""Replicas: what user code changes in its objects is a worker's own, on threads too."""
