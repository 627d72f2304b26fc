import torch
from common import EPOCHS, STEPS_PER_EPOCH, check_accuracy, make_model, train_loader, val_loader
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.handlers import CosineAnnealingScheduler, EMAHandler
from ignite.metrics import Loss
from torch import nn

model, loss_of = make_model(), nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def update(engine, batch):
    x, y = batch
    model.train()
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


trainer = Engine(update)
ema = EMAHandler(model, momentum=0.02)
ema.attach(trainer)
schedule = CosineAnnealingScheduler(optimizer, "lr", 3e-3, 0.0, 2 * EPOCHS * STEPS_PER_EPOCH)
trainer.add_event_handler(Events.ITERATION_STARTED, schedule)
evaluator = create_supervised_evaluator(ema.ema_model, {"loss": Loss(loss_of)})
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(val_loader))
trainer.run(train_loader, max_epochs=EPOCHS)
check_accuracy(ema.ema_model)
