"""Datasets with known costs. Each sample carries its index and what it cost, where affordable."""
