import keras
from common import EPOCHS, STEPS_PER_EPOCH, check_accuracy, make_model, train_loader, val_loader

net = make_model()
model = keras.Sequential([keras.layers.TorchModuleWrapper(net)])
schedule = keras.optimizers.schedules.CosineDecay(3e-3, EPOCHS * STEPS_PER_EPOCH)
optimizer = keras.optimizers.AdamW(schedule, global_clipnorm=1.0, use_ema=True, ema_momentum=0.98)
model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
swap = keras.callbacks.SwapEMAWeights()
model.fit(train_loader, epochs=EPOCHS, validation_data=val_loader, callbacks=[swap])
check_accuracy(net)
