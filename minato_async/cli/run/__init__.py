"""``minato-async run``: an unmodified training script, with `MinatoLoader` for torch's loader."""
