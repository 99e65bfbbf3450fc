"""Side-by-side measurements of loaders: ``python -m benchmarks --list`` says which.

Five separate things, so that a new target is one new file:

``workloads``  datasets whose cost per sample is known or measured by themselves;
``peers``      adapters that turn a :class:`~benchmarks.peers.base.Plan` into an iterable of
               batches, one per loader and mode;
``limits``     what no loader can beat, computed from the costs;
``measure``    interleaved rounds, checks, pauses, the machine; what the demo measures with, too,
               is in :mod:`minato_async.cli.measure`;
``targets``    one file per figure to reach; every module there with a ``TARGET`` is found.
"""
