"""``minato-async demo``: one small training on real photos, fed by each loader in turn.

The parent process finds the photos, starts one child process per loader and round
(`command`, `child_process`), watches the child's memory (`memory`) and shows progress and the
table (`progress`, `report`, `summary`). A child (`child`) builds one loader (`loaders`) over the
photos (`photos`, `augment`, `dataset`), trains a small network (`model`) from it and measures
what the training sees (`training`).
"""
