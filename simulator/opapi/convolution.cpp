// Convolution, pooling and padding.
#include "operator.h"

using namespace simulated;

constexpr uint64_t CONVOLUTION_WORKSPACE = 32 * MIB;

ACLNN_WITH_WORKSPACE(Convolution, CONVOLUTION_WORKSPACE,
                     (In a, In weight, MaybeIn bias, Ints stride, Ints padding, Ints dilation, bool transposed,
                      Ints output_padding, int64_t groups, Out out, int8_t),
                     out = at::convolution(*a, *weight, bias, *stride, *padding, *dilation, transposed, *output_padding,
                                           groups))

ACLNN_WITH_WORKSPACE(ConvolutionBackward, CONVOLUTION_WORKSPACE,
                     (In gradient, In a, In weight, Ints bias_sizes, Ints stride, Ints padding, Ints dilation,
                      bool transposed, Ints output_padding, int64_t groups, Bools wanted, int8_t, Out to_a,
                      Out to_weight, Out to_bias),
                     const auto mask = wanted.first<3>();
                     const auto [a_, weight_, bias_] = at::convolution_backward(*gradient, *a, *weight,
                                                                                bias_sizes.or_none(), *stride, *padding,
                                                                                *dilation, transposed, *output_padding,
                                                                                groups, mask);
                     if (mask[0]) to_a = a_; if (mask[1]) to_weight = weight_; if (mask[2]) to_bias = bias_)

ACLNN(AvgPool2d,
      (In a, Ints kernel, Ints stride, Ints padding, bool ceil, bool count_padding, int64_t divisor, int8_t, Out out),
      out = at::avg_pool2d(*a, *kernel, *stride, *padding, ceil, count_padding,
                           divisor != 0 ? std::optional<int64_t>(divisor) : std::nullopt))
ACLNN(AvgPool2dBackward,
      (In gradient, In a, Ints kernel, Ints stride, Ints padding, bool ceil, bool count_padding, int64_t divisor,
       int8_t, Out out),
      out = at::avg_pool2d_backward(*gradient, *a, *kernel, *stride, *padding, ceil, count_padding,
                                    divisor != 0 ? std::optional<int64_t>(divisor) : std::nullopt))
ACLNN(AdaptiveAvgPool2d, (In a, Ints size, Out out), out = at::adaptive_avg_pool2d(*a, *size))
ACLNN(AdaptiveAvgPool2dBackward, (In gradient, In a, Out out), out = at::_adaptive_avg_pool2d_backward(*gradient, *a))

// The mask is packed as only the hardware knows; the gradient finds the maxima again.
ACLNN(MaxPool2dWithMask, (In a, Ints kernel, Ints stride, Ints padding, Ints dilation, bool ceil, Out out, Out),
      out = at::max_pool2d(*a, *kernel, *stride, *padding, *dilation, ceil))
ACLNN(MaxPool2dWithMaskBackward,
      (In gradient, In a, In, Ints kernel, Ints stride, Ints padding, Ints dilation, bool ceil, Out out),
      const auto found = at::max_pool2d_with_indices(*a, *kernel, *stride, *padding, *dilation, ceil);
      out = at::max_pool2d_with_indices_backward(*gradient, *a, *kernel, *stride, *padding, *dilation, ceil,
                                                 std::get<1>(found)))
ACLNN(MaxPool2dWithIndices,
      (In a, Ints kernel, Ints stride, Ints padding, Ints dilation, bool ceil, Out out, Out index),
      outputs(out, index) = at::max_pool2d_with_indices(*a, *kernel, *stride, *padding, *dilation, ceil))
ACLNN(MaxPool2dWithIndicesBackward,
      (In gradient, In a, In index, Ints kernel, Ints stride, Ints padding, Ints dilation, bool ceil, Out out),
      out = at::max_pool2d_with_indices_backward(*gradient, *a, *kernel, *stride, *padding, *dilation, ceil,
                                                 (*index).to(at::kLong)))

ACLNN(ConstantPadNd, (In a, Ints padding, Number value, Out out), out = at::constant_pad_nd(*a, *padding, *value))
