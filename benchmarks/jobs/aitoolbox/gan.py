import torch
from aitoolbox.torchtrain.model import TTModel
from aitoolbox.torchtrain.multi_loss_optim import MultiLoss, MultiOptimizer
from aitoolbox.torchtrain.train_loop import TrainLoop
from common import GAN_EPOCHS, NOISE, check_generator, make_discriminator, make_generator, ring_loader
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits as bce


class GAN(TTModel):
    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = make_generator(), make_discriminator()

    def get_loss(self, batch_data, criterion, device):
        (real,), ones, zeros = batch_data, torch.ones(len(batch_data[0]), 1), torch.zeros(len(batch_data[0]), 1)
        fake = self.generator(torch.randn(len(real), NOISE))
        d_loss = bce(self.discriminator(real), ones) + bce(self.discriminator(fake.detach()), zeros)
        frozen = {name: value.detach().clone() for name, value in self.discriminator.named_parameters()}
        return MultiLoss({"d": d_loss, "g": bce(functional_call(self.discriminator, frozen, fake), ones)})

    def get_predictions(self, batch_data, device):
        return self.generator(batch_data), None, None


gan = GAN()
d_optimizer = torch.optim.Adam(gan.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9))
g_optimizer = torch.optim.Adam(gan.generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
optimizers = MultiOptimizer([d_optimizer, g_optimizer])
TrainLoop(gan, ring_loader, None, None, optimizers, None).fit(GAN_EPOCHS)
check_generator(gan.generator)
