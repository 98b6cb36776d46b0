"""The sections of the snapshot: one file each, one function `section_NAME(host)` each."""
