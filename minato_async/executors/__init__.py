"""Executors: what runs steps.

Each is a folder with a class that implements `engine.protocols.Executor` (`executor`), one that
implements `factory.ExecutorSide` (`loading`), an epoch that makes its jobs (`map_epoch`) and the
jobs themselves (`jobs`). The engine knows none of them: to add one, make it known in `factory`, and
its name in `options.EXECUTORS`.
"""
