import torch
from common import EPOCHS, check_accuracy, make_model, train_loader, val_loader
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from torch import nn

model, loss = make_model(), nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss)
evaluator = create_supervised_evaluator(model, {"acc": Accuracy(), "loss": Loss(loss)})


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate():
    evaluator.run(val_loader)
    print(trainer.state.epoch, evaluator.state.metrics)


trainer.run(train_loader, max_epochs=EPOCHS)
check_accuracy(model)
