"""Worker processes: the executor for interpreters with the GIL.

The parent's half: `loading`, `executor`, `map_epoch`, `sharded_epoch`, `jobs` (also what becomes of
a job whose worker has died). The workers' half: `worker_main`, `worker_samples`, `worker_shards`.
What goes between: `messages` over a `channel`, `progress` and values (`transport`) in shared
memory. Workers are forked by a `fork_server`.
"""
