"""Compare ranks by their own work and their waits for others, combined on rank 0 without a collective."""

from .backward import BackwardWatch
from .exchange import Exchange
from .probe import RankProbe, rank_summary

__all__ = ["BackwardWatch", "Exchange", "RankProbe", "rank_summary"]
