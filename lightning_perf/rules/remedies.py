"""Cheaper alternatives to calls of well-known libraries, found by the called function or the text of the line."""

import re

_CALL = r"(\(|$)"
_REMEDIES = (
    # That of a RandomState permutes all of the population.
    (
        r"\.choice\((?!.*\bp\s*=).*replace\s*=\s*False",
        "call the choice of a Generator (np.random.default_rng), kept in between, not that of np.random or of a "
        "RandomState: it is faster for a few of many items",
    ),
    (
        r"\.choice\((?!.*replace\s*=\s*False)[^;]*,\s*p\s*=(?!=)",
        "add up the probabilities once, sums = np.cumsum(p), sums /= sums[-1], and draw with "
        'np.searchsorted(sums, rng.random(n), side="right")',
    ),
    (
        r"\b(np|numpy)\.load" + _CALL + r"(?!.*mmap_mode)|NpzFile",
        'keep arrays in .npy files, opened once with mmap_mode="r": np.load and .npz files read whole arrays each time',
    ),
    (
        r"(?<!np\.)(?<!numpy\.)\brandom\.(Random\.)?sample" + _CALL,
        "draw from a list or an array: a deque is walked through for each item that is drawn",
    ),
    (
        r"\bpermutation\(.*\)\s*\[\s*:",
        "draw only what is needed, by the choice of a Generator with replace=False: a permutation orders all items",
    ),
    (r"\brandperm\(.*\)\s*\[\s*:", "draw only the items that are needed, by torch.randint if they may repeat"),
    (r"\b(np|numpy)\.(loadtxt|genfromtxt)" + _CALL, "store the arrays as .npy files"),
    (r"\b(np|numpy)\.(append|insert|delete)" + _CALL, "collect parts in a list, and join them once: this copies all"),
    (r"\b(np|numpy)\.(vectorize|apply_along_axis)", "operate on whole arrays: it calls the function for each element"),
    (
        r"(?i:\b(sqlite3\.\w+|cur|cursor|conn?|connection|db)\.execute(many)?\b|\.execute\(.*(sql|query|select))",
        "for reads, index the columns that the query looks up, or read the table once; for writes, use one transaction",
    ),
    (r"\.iloc\[|\.loc\[|\.iterrows\(|\.itertuples\(", "convert the table's columns to arrays once, and index those"),
    (r"\bread_(csv|json|excel)" + _CALL, "read the table once and keep it, or store it as Parquet"),
    (r"\b(sqlite3\.connect|h5py\.File|ZipFile|tarfile\.open|lmdb\.open)" + _CALL, "open the file once per process"),
    (r"\bdeepcopy" + _CALL, "copy only what changes"),
    (r"\bsubprocess\.", "start the command less often, or once with a pipe to write to"),
    (
        r"\b((json|pickle|yaml|toml|tomllib)\.(safe_)?loads?|(ElementTree|etree|ET)\.(parse|fromstring))" + _CALL,
        "parse each record once and keep the result",
    ),
    (r"\.strptime" + _CALL + r"|\bto_datetime" + _CALL, "parse the dates once, before training"),
    (r"\bre\.(sub|split|findall|finditer|match|search|fullmatch)" + _CALL, "prepare the texts once, before training"),
    (r"\bos\.(listdir|scandir|walk)" + _CALL + r"|\bi?r?glob" + _CALL, "list the files once and keep the list"),
    (r"\blinecache\.getlines?" + _CALL, "keep the offset of each line, and seek to it"),
    (r"\b(requests\.(get|post)|urlopen|urlretrieve)" + _CALL, "download the data once, before training"),
    (
        r"\b(librosa|torchaudio|sf|soundfile)\.(load|read)" + _CALL,
        "store the audio decoded, at the rate that training needs",
    ),
    (r"\blibrosa\.feature\.|\bMelSpectrogram\b|\bMFCC\b", "compute these features once, or of the whole batch at once"),
    (r"\b(zlib|gzip|bz2|lzma)\.", "store it uncompressed, or with a codec that is faster to read (lz4, zstd)"),
    (r"\bImage\.open" + _CALL, "store the images at the size that training needs"),
    (r"\b(tokenizer?|nlp)\(|tokenize" + _CALL + r"|\.encode_plus" + _CALL, "tokenize the texts once, before training"),
)  # fmt: skip
"""Pattern of the called function or of the line's text → what to do instead."""


def remedy_for(*texts: str) -> str:
    """Return what to do instead of the call in the first of these texts that has a known one; empty if none has."""
    return next((what for text in texts for pattern, what in _REMEDIES if re.search(pattern, text)), "")
