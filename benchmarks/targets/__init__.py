"""The figures to reach, one module each. A module with a ``TARGET`` is found by itself."""
