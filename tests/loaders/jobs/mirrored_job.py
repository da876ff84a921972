"""Two logical CPUs under MirroredStrategy."""

from __future__ import annotations

import keras
import tensorflow as tf

from dlio.loaders.tensorflow import dataset
from tests.loaders.jobs.reading import DATA, report
from tests.loaders.jobs.strategies import GLOBAL_BATCH, OPTIONS, fit, per_worker, photos

[processor] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
told = {
    "by function": photos(strategy, strategy.distribute_datasets_from_function(per_worker)),
    "by data set": photos(strategy, strategy.experimental_distribute_dataset(dataset(DATA, GLOBAL_BATCH, **OPTIONS))),
    "fit": fit(strategy, keras),
}
report(0, told)
