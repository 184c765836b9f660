// The packed masks of dropout, which the attention operators take too.
#pragma once
#include <ATen/ATen.h>

namespace simulated {

// One bit for each element (1 = kept), the lowest bit of a byte first -> a bool tensor of `sizes`.
at::Tensor unpacked(const at::Tensor& mask, at::IntArrayRef sizes);

}  // namespace simulated
