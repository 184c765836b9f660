// Activation functions and losses, with their gradients.
#include "operator.h"

using namespace simulated;

#define ACTIVATION(NAME, FUNCTION) ACLNN(NAME, (In a, Out out), out = at::FUNCTION(*a))
ACTIVATION(Gelu, gelu)
ACTIVATION(Relu, relu)
ACTIVATION(Sigmoid, sigmoid)
ACTIVATION(Silu, silu)
ACTIVATION(Tanh, tanh)

ACLNN(InplaceRelu, (InOut a), (*a).relu_())
ACLNN(InplaceSigmoid, (InOut a), (*a).sigmoid_())
ACLNN(InplaceTanh, (InOut a), (*a).tanh_())

ACLNN(GeluBackward, (In gradient, In a, Out out), out = at::gelu_backward(*gradient, *a))
ACLNN(SigmoidBackward, (In gradient, In y, Out out), out = at::sigmoid_backward(*gradient, *y))
ACLNN(SiluBackward, (In gradient, In a, Out out), out = at::silu_backward(*gradient, *a))
ACLNN(TanhBackward, (In gradient, In y, Out out), out = at::tanh_backward(*gradient, *y))
ACLNN(ThresholdBackward, (In gradient, In a, Number threshold, Out out),
      out = at::threshold_backward(*gradient, *a, *threshold))

ACLNN(Softmax, (In a, int64_t dim, Out out), out = at::_softmax(*a, dim, false))
ACLNN(LogSoftmax, (In a, int64_t dim, Out out), out = at::_log_softmax(*a, dim, false))
ACLNN(SoftmaxBackward, (In gradient, In y, int64_t dim, Out out),
      out = at::_softmax_backward_data(*gradient, *y, dim, (*y).scalar_type()))
ACLNN(LogSoftmaxBackward, (In gradient, In y, int64_t dim, Out out),
      out = at::_log_softmax_backward_data(*gradient, *y, dim, (*y).scalar_type()))

// torch_npu narrows targets to int32; the CPU kernel takes int64 only.
ACLNN(NLLLoss, (In a, In target, MaybeIn weight, int64_t reduction, int64_t ignored, Out out, Out total_weight),
      outputs(out, total_weight) = at::nll_loss_forward(*a, (*target).to(at::kLong), weight, reduction, ignored))
ACLNN(NLLLossBackward,
      (In gradient, In a, In target, MaybeIn weight, int64_t reduction, int64_t ignored, In total_weight, Out out),
      out = at::nll_loss_backward(*gradient, *a, (*target).to(at::kLong), weight, reduction, ignored, *total_weight))
ACLNN(MseLoss, (In a, In target, int64_t reduction, Out out), out = at::mse_loss(*a, *target, reduction))
ACLNN(MseLossBackward, (In gradient, In a, In target, int64_t reduction, Out out),
      out = at::mse_loss_backward(*gradient, *a, *target, reduction))
