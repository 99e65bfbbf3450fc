"""``minato-async demo``: one small training on real photos, fed by each loader in turn.

The parent process finds the photos (`photos`), starts one child process per loader and round and
watches its memory (`command`, `measure.child`, `measure.memory`), and shows the table (`report`,
`summary`). A child (`training`) builds one loader (`loaders`) over the
photos (`augment`, `dataset`), trains a small network (`model`) from it, and measures what the
training sees (`measure.epoch`).
"""
