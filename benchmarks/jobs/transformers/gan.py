import torch
from common import BATCH, GAN_EPOCHS, NOISE, check_generator, make_discriminator, make_generator, ring_set
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from transformers import Trainer, TrainingArguments


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = make_generator(), make_discriminator()
        self.d_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9))

    def forward(self, real):
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = self.generator(torch.randn(len(real), NOISE))
        self.d_optimizer.zero_grad()
        (bce(self.discriminator(real), ones) + bce(self.discriminator(fake.detach()), zeros)).backward()
        self.d_optimizer.step()
        return {"loss": bce(self.discriminator(fake), ones)}


def collate(samples):
    return {"real": torch.stack([real for (real,) in samples])}


gan = GAN()
g_optimizer = torch.optim.Adam(gan.generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
constant = torch.optim.lr_scheduler.ConstantLR(g_optimizer, 1.0)
arguments = TrainingArguments("run", num_train_epochs=GAN_EPOCHS, per_device_train_batch_size=BATCH, max_grad_norm=0.0)
Trainer(gan, arguments, collate, ring_set, optimizers=(g_optimizer, constant)).train()
check_generator(gan.generator)
