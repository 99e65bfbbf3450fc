"""How runs are measured: one consumer's loop, interleaved rounds, checks, memory, the machine."""
