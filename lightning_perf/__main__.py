"""``python -m lightning_perf``: the command line."""

from lightning_perf.cli.app import main

if __name__ == "__main__":
    main()
