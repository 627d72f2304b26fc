import torch
from common import BATCH, GAN_EPOCHS, NOISE, check_generator, make_discriminator, make_generator, ring_set
from pytorch_accelerated import Trainer
from torch.nn.functional import binary_cross_entropy_with_logits as bce


class GANTrainer(Trainer):
    def __init__(self, generator, discriminator, g_optimizer, d_optimizer):
        super().__init__(generator, bce, g_optimizer)
        self.discriminator, self.d_optimizer = discriminator, d_optimizer

    def calculate_train_batch_loss(self, batch):
        (real,), ones, zeros = batch, torch.ones(len(batch[0]), 1), torch.zeros(len(batch[0]), 1)
        fake = self.model(torch.randn(len(real), NOISE))
        self.d_optimizer.zero_grad()
        (bce(self.discriminator(real), ones) + bce(self.discriminator(fake.detach()), zeros)).backward()
        self.d_optimizer.step()
        return {"loss": bce(self.discriminator(fake), ones), "model_outputs": fake, "batch_size": len(real)}


generator, discriminator = make_generator(), make_discriminator()
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9))
trainer = GANTrainer(generator, discriminator, g_optimizer, d_optimizer)
trainer.train(ring_set, GAN_EPOCHS, per_device_batch_size=BATCH)
check_generator(generator)
