"""A conditional adversarial network makes molecular descriptor vectors, with manual optimization of two optimizers and
a critic that is trained on detached samples.
---
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

DESCRIPTORS, TARGETS, NOISE, BATCH = 128, 8, 64, 512


def molecules(count):
    gen = torch.Generator().manual_seed(52)
    target = torch.randn(count, TARGETS, generator=gen)
    latent = torch.cat([target, torch.randn(count, 24, generator=gen)], dim=1)
    mixing = torch.randn(TARGETS + 24, DESCRIPTORS, generator=gen) / 5
    return TensorDataset(torch.tanh(latent @ mixing), target)


def tower(inside, width, outside):
    return nn.Sequential(
        nn.Linear(inside, width),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Linear(width, outside),
    )


class MoleculeGan(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = tower(NOISE + TARGETS, 384, DESCRIPTORS)
        self.critic = tower(DESCRIPTORS + TARGETS, 384, 1)

    def forward(self, target):
        noise = torch.randn(len(target), NOISE, device=target.device)
        return torch.tanh(self.generator(torch.cat([noise, target], dim=1)))

    def judge(self, molecule, target):
        return self.critic(torch.cat([molecule, target], dim=1))

    def training_step(self, batch, batch_idx):
        real, target = batch
        gen_opt, critic_opt = self.optimizers()
        fake = self(target)

        # one pass of the critic over real and made samples together
        both = self.judge(torch.cat([real, fake.detach()]), target.repeat(2, 1))
        on_real, on_fake = both.chunk(2)
        critic_loss = F.softplus(-on_real).mean() + F.softplus(on_fake).mean()
        critic_opt.zero_grad()
        self.manual_backward(critic_loss)
        critic_opt.step()

        self.critic.requires_grad_(False)
        gen_loss = F.softplus(-self.judge(fake, target)).mean()
        gen_opt.zero_grad()
        self.manual_backward(gen_loss)
        gen_opt.step()
        self.critic.requires_grad_(True)

    def configure_optimizers(self):
        generator = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True)
        critic = torch.optim.Adam(self.critic.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True)
        return generator, critic


if __name__ == "__main__":
    lightning.seed_everything(14, verbose=False)
    data = molecules(80 * BATCH)
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), BATCH, drop_last=True), batch_size=None)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(MoleculeGan(), loader)
