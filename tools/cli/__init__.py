"""The developers' verbs of `./gpufleet`: each module has the name of its verb."""
