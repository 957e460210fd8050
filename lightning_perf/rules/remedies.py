"""Cheaper ways to do what calls of well-known libraries do, found by the text of the line that calls them."""

import re

_REMEDIES = (
    (
        r"random\.choice\(.*replace\s*=\s*False",  # permutes all of the population
        "draw with np.random.default_rng().choice, which is faster for few of many",
    ),
    (r"\.choice\(.*\bp\s*=", "add up the probabilities once, and draw with np.searchsorted(sums, rng.random(n))"),
    (r"\bnp\.load\(|\bnumpy\.load\(|NpzFile", 'keep arrays in .npy files, opened once with mmap_mode="r"'),
    (r"\.iloc\[|\.iterrows\(|\.itertuples\(", "convert the table's columns to arrays once, and index those"),
    (r"\bread_(csv|json|excel|table)\(", "read the table once and keep it, or store it as Parquet"),
    (r"\b(sqlite3\.connect|h5py\.File|ZipFile|tarfile\.open|lmdb\.open)\(", "open the file once in each process"),
    (r"\bdeepcopy\(", "copy only what changes"),
    (r"\bsubprocess\.", "start the command once and write to its pipe"),
    (r"\bjson\.loads?\(", "parse each record once and keep the result"),
    (r"\b(zlib|gzip|bz2|lzma)\.", "store it uncompressed, or with a codec that is faster to read (lz4, zstd)"),
    (r"\bImage\.open\(|\.resize\(", "store the images at the size that training needs"),
    (r"\btokenizer?\(|\.tokenize\(|\.encode_plus\(", "tokenize the texts once, before training"),
)  # fmt: skip
"""Pattern of the line's text or of the called function → what to do instead."""


def remedy_for(*texts: str) -> str:
    """Return what to do instead of a call in one of these texts; empty if none is known."""
    return next((what for pattern, what in _REMEDIES if any(re.search(pattern, text) for text in texts)), "")
