"""A small BERT-style encoder is pretrained with masked language modelling. The vocabulary projection and the cross
entropy are computed for all positions although only the masked 15 % count (the others carry the label -100).
---
expect: PD325
fix:
  ? "        logits = self.decoder(self.transform(hidden))  # costs time"
  : "        logits = self.decoder(self.transform(hidden[labels != -100]))"
  ? "        return F.cross_entropy(logits.view(-1, self.vocab), labels.view(-1), ignore_index=-100)  # costs time"
  : "        return F.cross_entropy(logits, labels[labels != -100])"
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCAB, SEQ_LEN, PAD, MASK, FIRST = 8000, 64, 0, 1, 5


def synth_corpus(n_docs, seed):
    """Zipfian tokens with a topic per document and strong bigrams (token t is often followed by its successor)."""
    g = torch.Generator().manual_seed(seed)
    weights = 1.0 / torch.arange(1, VOCAB - FIRST + 1) ** 1.05
    tokens = FIRST + torch.multinomial(weights, n_docs * SEQ_LEN, replacement=True, generator=g).view(n_docs, SEQ_LEN)
    topic = torch.randint(0, 50, (n_docs, 1), generator=g)
    topical = FIRST + topic * 20 + torch.randint(0, 20, (n_docs, SEQ_LEN), generator=g)
    tokens = torch.where(torch.rand(tokens.shape, generator=g) < 0.4, topical, tokens)
    follows = torch.rand(n_docs, SEQ_LEN - 1, generator=g) < 0.4
    tokens[:, 1:] = torch.where(follows, (tokens[:, :-1] * 7 + 11) % (VOCAB - FIRST) + FIRST, tokens[:, 1:])
    return tokens


class Corpus(Dataset):
    def __init__(self, tokens):
        self.tokens = tokens

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i]


class MaskingCollator:
    def __init__(self, p=0.15):
        self.p = p

    def __call__(self, examples):
        tokens = torch.stack(examples)
        chosen = torch.rand(tokens.shape) < self.p
        labels = torch.where(chosen, tokens, -100)
        roll = torch.rand(tokens.shape)
        inputs = torch.where(chosen & (roll < 0.8), MASK, tokens)
        inputs = torch.where(chosen & (roll > 0.9), torch.randint_like(tokens, FIRST, VOCAB), inputs)
        return inputs, labels


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class MaskedLM(L.LightningModule):
    def __init__(self, vocab=VOCAB, dim=128, heads=4, depth=2, lr=1e-3):
        super().__init__()
        self.vocab, self.lr = vocab, lr
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(SEQ_LEN, dim))
        nn.init.normal_(self.tok.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)), nn.LayerNorm(dim))
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.decoder = nn.Linear(dim, vocab)
        self.decoder.weight = self.tok.weight

    def forward(self, inputs, labels):
        hidden = self.blocks(self.tok(inputs) + self.pos)
        logits = self.decoder(self.transform(hidden))  # costs time
        return F.cross_entropy(logits.view(-1, self.vocab), labels.view(-1), ignore_index=-100)  # costs time

    def training_step(self, batch, batch_idx):
        loss = self(*batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 40))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    L.seed_everything(1)
    loader = DataLoader(
        Corpus(synth_corpus(640, seed=1)), batch_size=8, shuffle=True, drop_last=True, collate_fn=MaskingCollator()
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(MaskedLM(), loader)
    print("final loss", float(trainer.callback_metrics["train_loss"]))


if __name__ == "__main__":
    main()
