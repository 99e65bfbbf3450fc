"""What it takes to use `MinatoLoader` inside other frameworks. See `docs/frameworks.md`.

Each module imports its framework, which `minato_async` itself never does.
"""
