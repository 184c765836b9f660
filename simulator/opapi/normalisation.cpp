// Layer, batch and root-mean-square normalisation, with their gradients.
#include "operator.h"

using namespace simulated;

#define LAYER_NORM(NAME)                                                                                       \
    ACLNN(NAME, (In a, Ints sizes, MaybeIn weight, MaybeIn bias, double epsilon, Out out, Out mean, Out rstd), \
          outputs(out, mean, rstd) = at::native_layer_norm(*a, *sizes, weight, bias, epsilon))
LAYER_NORM(LayerNorm)
LAYER_NORM(FastLayerNorm)

ACLNN(LayerNormBackward,
      (In gradient, In a, Ints sizes, In mean, In rstd, MaybeIn weight, MaybeIn bias, Bools wanted, Out to_a,
       Out to_weight, Out to_bias),
      const auto mask = wanted.first<3>();
      const auto [a_, weight_, bias_] = at::native_layer_norm_backward(*gradient, *a, *sizes, *mean, *rstd, weight,
                                                                       bias, mask);
      if (mask[0]) to_a = a_; if (mask[1]) to_weight = weight_; if (mask[2]) to_bias = bias_)

ACLNN(
    BatchNorm,
    (In a, MaybeIn weight, MaybeIn bias, MaybeIn running_mean, MaybeIn running_var, bool training, double momentum,
     double epsilon, Out out, Out mean, Out rstd),
    const auto [out_, mean_, rstd_] = at::native_batch_norm(*a, weight, bias, running_mean, running_var, training,
                                                            momentum, epsilon);
    out = out_; if (training) {
        mean = mean_;
        rstd = rstd_;
    })

ACLNN(BatchNormBackward,
      (In gradient, In a, MaybeIn weight, MaybeIn running_mean, MaybeIn running_var, MaybeIn mean, MaybeIn rstd,
       bool training, double epsilon, Bools wanted, Out to_a, Out to_weight, Out to_bias),
      const auto mask = wanted.first<3>();
      const auto [a_, weight_, bias_] = at::native_batch_norm_backward(*gradient, *a, weight, running_mean, running_var,
                                                                       mean, rstd, training, epsilon, mask);
      if (mask[0]) to_a = a_; if (mask[1]) to_weight = weight_; if (mask[2]) to_bias = bias_)
