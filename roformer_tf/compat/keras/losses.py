"""`keras.losses`, also by the names of Keras 2."""

from keras.losses import *  # noqa: F403
from keras.losses import (
    kl_divergence,
    log_cosh,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_squared_error,
    mean_squared_logarithmic_error,
)

from roformer_tf.compat import names_not_offered

KLD = kld = kullback_leibler_divergence = kl_divergence
MAE = mae = mean_absolute_error
MAPE = mape = mean_absolute_percentage_error
MSE = mse = mean_squared_error
MSLE = msle = mean_squared_logarithmic_error
logcosh = log_cosh

__getattr__ = names_not_offered(__name__, {}, "Keras 3 has no such loss: see keras.io/api/losses.")
