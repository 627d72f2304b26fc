import torch
from common import MAX_EPOCHS, check_stopped, make_model, train_loader, val_loader
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping
from ignite.metrics import Loss
from torch import nn

model, loss = make_model(), nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-2), loss)
evaluator = create_supervised_evaluator(model, {"loss": Loss(loss)})
score = Checkpoint.get_default_score_fn("loss", -1.0)
best = Checkpoint({"model": model}, DiskSaver("best"), n_saved=1, score_function=score)
evaluator.add_event_handler(Events.COMPLETED, EarlyStopping(3, score, trainer))
evaluator.add_event_handler(Events.COMPLETED, best)
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(val_loader))
trainer.run(train_loader, max_epochs=MAX_EPOCHS)
model.load_state_dict(torch.load(best.last_checkpoint))
check_stopped(model, -best._saved[-1].priority)
