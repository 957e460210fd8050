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
        (["random.Random.sample"], "a deque is walked through"),
        (["rows = random.sample(self.memory, 64)"], "a deque is walked through"),
        (["raw = zlib.decompress(self.blocks[i])"], "uncompressed"),
        (['image = Image.open(path).convert("RGB")'], "at the size"),
        (["ids = self.tokenizer(text)"], "tokenize the texts once"),
        (['subprocess.run(["sox", path])'], "once with a pipe"),
        (["picked = rng.permutation(len(self))[:64]"], "draw only what is needed"),
        (["picked = torch.randperm(n)[: self.k]"], "torch.randint"),
        (["rows = self.db.execute(QUERY, (user,)).fetchall()"], "index the columns that the query looks up"),
        (
            ["sqlite3.Cursor.execute", 'self.db.execute("INSERT INTO seen VALUES (?)", row)'],
            "for writes, use one transaction",
        ),
        (["x = np.loadtxt(path)"], ".npy"),
        (["self.all = np.append(self.all, x)"], "collect parts in a list"),
        (["y = np.apply_along_axis(scale, 1, x)"], "operate on whole arrays"),
        (["row = self.table.loc[key]"], "convert the table's columns"),
        (["record = pickle.loads(raw)"], "parse each record once"),
        (["root = ET.fromstring(raw)"], "parse each record once"),
        (["day = datetime.strptime(text, FORMAT)"], "parse the dates once"),
        (['words = re.findall(r"[a-z]+", text)'], "prepare the texts once"),
        (["files = sorted(os.listdir(folder))"], "list the files once"),
        (['files = list(self.root.rglob("*.png"))'], "list the files once"),
        (["text = linecache.getline(path, i)"], "seek to it"),
        (["raw = requests.get(url).content"], "download the data once"),
        (["wave, rate = torchaudio.load(path)"], "store the audio decoded"),
        (["x = librosa.feature.mfcc(y=wave)"], "compute these features once"),
        (["doc = nlp(text)"], "tokenize the texts once"),
    ],
)
def test_remedy_is_that_of_the_call(texts: list[str], words: str) -> None:
    assert words in remedy_for(*texts)


@pytest.mark.parametrize(
    "text",
    [
        "x = self.rows[index]",
        "x = np.random.sample(64)",
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
        "order = rng.permutation(len(self))",
        "order = torch.randperm(n)",
        "self.loader = x.reload()",
        "y = self.pool.execute(job)",
        "row = self.allocated[i]",
        "y = self.feature(x)",
    ],
)
def test_nothing_is_said_of_other_calls(text: str) -> None:
    assert remedy_for(text) == ""
