"""A costly call of a well-known library is answered with what does the same for less."""

from __future__ import annotations

import pytest

from lightning_perf.rules.remedies import remedy_for


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["idx = np.random.choice(self.size, n, replace=False)"], "default_rng().choice"),
        (["x = rng.choice(n_items, size=5, p=self.popularity)"], "np.searchsorted"),
        (['image = np.load(path)["image"]'], "mmap_mode"),
        (['image = case["image"]', "numpy.NpzFile.__getitem__"], "mmap_mode"),
        (["row = self.table.iloc[index]"], "convert the table's columns"),
        (["table = pd.read_csv(path)"], "Parquet"),
        (['with zipfile.ZipFile(self.path) as archive, archive.open("a") as file:'], "once in each process"),
        (["state = copy.deepcopy(self.state)"], "only what changes"),
        (["record = json.loads(line)"], "parse each record once"),
        (["raw = zlib.decompress(self.blocks[i])"], "uncompressed"),
        (['image = Image.open(path).convert("RGB")'], "at the size"),
        (["ids = self.tokenizer(text)"], "tokenize the texts once"),
        (['subprocess.run(["sox", path])'], "start the command once"),
    ],
)
def test_remedy_names_what_costs_less(texts: list[str], words: str) -> None:
    assert words in remedy_for(*texts)


@pytest.mark.parametrize(
    "text",
    [
        "x = self.rows[index]",
        "index = rng.choice(n_items, size=5)",  # draws with replacement, each as likely as the other
        "parameters = self.choice(prices)",
        "x = torch.load(path)",
        "y = tokens[index]",
    ],
)
def test_nothing_is_said_of_other_calls(text: str) -> None:
    assert remedy_for(text) == ""
