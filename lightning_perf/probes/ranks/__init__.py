"""Compare ranks: what each did itself and how long it waited for others, combined on rank 0 without a collective."""

from .backward import BackwardWatch
from .exchange import Exchange
from .probe import RankProbe, rank_summary

__all__ = ["BackwardWatch", "Exchange", "RankProbe", "rank_summary"]
