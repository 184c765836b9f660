"""msMemScope, the distributed edition: what a training or inference job does with its memory, over all ranks."""
