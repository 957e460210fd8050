"""Read what was set: Trainer, loaders, torch, machine, script."""
