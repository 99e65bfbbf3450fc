"""Resuming: what is saved of an epoch, in which form, and which states are refused."""
