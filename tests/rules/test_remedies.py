"""Findings name a cheaper alternative to a costly call of a well-known library."""

from __future__ import annotations

import pytest

from lightning_perf.rules.remedies import remedy_for


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["idx = np.random.choice(self.size, n, replace=False)"], "np.random.default_rng"),
        (["rows = self.rng.choice(self.size, n, replace=False)"], "not that of np.random or of a RandomState"),
        (["x = rng.choice(n_items, size=5, p=self.popularity)"], "np.searchsorted"),
        (['image = np.load(path)["image"]'], "mmap_mode"),
        (['image = case["image"]', "numpy.NpzFile.__getitem__"], "mmap_mode"),
        (["zlib.decompress", "x = json.loads(zlib.decompress(raw))"], "uncompressed"),  # the call comes first
        (["json.loads", "x = parsed(raw)"], "parse each record once"),
        (["row = self.table.iloc[index]"], "convert the table's columns"),
        (["table = pd.read_csv(path)"], "Parquet"),
        (['with zipfile.ZipFile(self.path) as archive, archive.open("a") as file:'], "once per process"),
        (["state = copy.deepcopy(self.state)"], "only what changes"),
        (["record = json.loads(line)"], "parse each record once"),
        (["raw = zlib.decompress(self.blocks[i])"], "uncompressed"),
        (['image = Image.open(path).convert("RGB")'], "at the size"),
        (["ids = self.tokenizer(text)"], "tokenize the texts once"),
        (['subprocess.run(["sox", path])'], "once with a pipe"),
    ],
)
def test_remedy_is_that_of_the_call(texts: list[str], words: str) -> None:
    assert words in remedy_for(*texts)


@pytest.mark.parametrize(
    "text",
    [
        "x = self.rows[index]",
        "index = rng.choice(n_items, size=5)",  # draws with replacement, each as likely as the other
        "parameters = self.choice(prices)",
        "x = random.choice(xs); p = x.price",
        "if rng.choice(2, size=n) and p == 3:",
        "idx = rng.choice(n, 64, replace=False, p=w)",  # searchsorted would draw with replacement
        "idx = np.random.choice(n, 64, replace=False, p=w)",  # a generator takes as long
        'x = np.load(self.path, mmap_mode="r")[index]',
        "table = pq.read_table(path)",
        "image = image.crop(random_box).resize(size)",
        "x = torch.load(path)",
        "y = tokens[index]",
    ],
)
def test_nothing_is_said_of_other_calls(text: str) -> None:
    assert remedy_for(text) == ""
