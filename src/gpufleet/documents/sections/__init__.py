"""The data of a snapshot's sections, one file per group of sections."""
