"""A set predictor matches its queries with the true boxes greedily, in Python loops over the costs of each image.
---
expect: PD511
half: score
fix:
  'N_QUERIES = 48': |-
    N_QUERIES = 48


    def match_all(costs):
        costs, chosen = costs.clone(), torch.empty(len(costs), N_BOXES, dtype=torch.long)
        rows = torch.arange(len(costs))
        for _ in range(N_BOXES):
            best = costs.flatten(1).argmin(1)
            query, box = best // N_BOXES, best % N_BOXES
            chosen[rows, box] = query
            costs[rows, query] = float("inf")
            costs[rows, :, box] = float("inf")
        return chosen
  'torch.tensor([match(cost) for cost in costs.tolist()])  # costs time': 'match_all(costs)'
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

N_BOXES = 8
N_QUERIES = 48


def match(cost):
    chosen = [0] * N_BOXES
    free_queries, free_boxes = set(range(N_QUERIES)), set(range(N_BOXES))
    while free_boxes:
        best, pair = float("inf"), None
        for query in free_queries:
            for box in free_boxes:  # costs time
                if cost[query][box] < best:  # costs time
                    best, pair = cost[query][box], (query, box)
        chosen[pair[1]] = pair[0]
        free_queries.remove(pair[0])
        free_boxes.remove(pair[1])
    return chosen


class Detector(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
        self.boxes = nn.Linear(512, N_QUERIES * 4)

    def training_step(self, batch, batch_idx):
        features, boxes = batch
        guesses = self.boxes(self.trunk(features)).unflatten(1, (N_QUERIES, 4))
        with torch.no_grad():
            costs = torch.cdist(guesses, boxes, p=1)
            matches = torch.tensor([match(cost) for cost in costs.tolist()])  # costs time
        matched = guesses.gather(1, matches.unsqueeze(-1).expand(-1, -1, 4))
        return nn.functional.l1_loss(matched, boxes)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    images = TensorDataset(torch.randn(1280, 512), torch.rand(1280, N_BOXES, 4))
    loader = DataLoader(images, sampler=BatchSampler(RandomSampler(images), 32, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=8,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Detector(), loader)
