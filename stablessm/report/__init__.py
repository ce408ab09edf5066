"""Records in, one HTML file out. Needs no torch: everything it shows was written by a run."""
