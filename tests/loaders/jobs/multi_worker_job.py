"""One of the workers under MultiWorkerMirroredStrategy, as TF_CONFIG describes it."""

from __future__ import annotations

import tensorflow as tf
import tf_keras  # Keras 3 fits no model on several workers, whatever the data

from dlio.cluster.topology import Topology
from dlio.loaders.tensorflow import dataset
from tests.loaders.jobs.reading import DATA, report
from tests.loaders.jobs.strategies import GLOBAL_BATCH, OPTIONS, fit, per_worker, photos

strategy = tf.distribute.MultiWorkerMirroredStrategy()
told = {
    "by function": photos(strategy, strategy.distribute_datasets_from_function(per_worker)),
    "by data set": photos(strategy, strategy.experimental_distribute_dataset(dataset(DATA, GLOBAL_BATCH, **OPTIONS))),
    "fit": fit(strategy, tf_keras),
}
report(Topology.from_env().rank, told)
