import torch
from common import EPOCHS, check_accuracy, make_model, train_set, val_set
from pytorch_accelerated import Trainer
from torch import nn


class WithAccuracy(Trainer):
    def eval_epoch_start(self):
        super().eval_epoch_start()
        self.right = self.seen = 0

    def calculate_eval_batch_loss(self, batch):
        output = super().calculate_eval_batch_loss(batch)
        self.right += (output["model_outputs"].argmax(-1) == batch[1]).sum().item()
        self.seen += len(batch[1])
        return output

    def eval_epoch_end(self):
        self.run_history.update_metric("accuracy", self.right / self.seen)


model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
trainer = WithAccuracy(model, nn.CrossEntropyLoss(), optimizer)
trainer.train(train_set, EPOCHS, val_set, per_device_batch_size=32)
check_accuracy(model)
