// One call for a whole list of tensors: what optimizers and gradient clipping use.
#include "operator.h"

using namespace simulated;

namespace {

std::vector<at::Tensor> norms(Ins a, const at::Scalar& order) {
    std::vector<at::Tensor> found;
    for (const at::Tensor& tensor : *a) {
        found.push_back(at::linalg_vector_norm(tensor, order));
    }
    return found;
}

std::vector<at::Scalar> numbers(In values) {
    std::vector<at::Scalar> list;
    const at::Tensor flat = (*values).flatten();
    for (int64_t i = 0; i < flat.numel(); ++i) {
        list.push_back(flat[i].item());
    }
    return list;
}

}  // namespace

// V2 passes the number as a number, the first version as a tensor of one element.
ACLNN(ForeachAddList, (Ins a, Ins b, In alpha, Outs out), out = at::_foreach_add(*a, *b, (*alpha).item()))
ACLNN(ForeachAddListV2, (Ins a, Ins b, Number alpha, Outs out), out = at::_foreach_add(*a, *b, *alpha))
ACLNN(ForeachAddScalar, (Ins a, In b, Outs out), out = at::_foreach_add(*a, (*b).item()))
ACLNN(ForeachAddScalarV2, (Ins a, Number b, Outs out), out = at::_foreach_add(*a, *b))
ACLNN(ForeachAddScalarList, (Ins a, Numbers b, Outs out), out = at::_foreach_add(*a, *b))
ACLNN(ForeachSubListV2, (Ins a, Ins b, Number alpha, Outs out), out = at::_foreach_sub(*a, *b, *alpha))
ACLNN(ForeachSubScalarV2, (Ins a, Number b, Outs out), out = at::_foreach_sub(*a, *b))
ACLNN(ForeachMulList, (Ins a, Ins b, Outs out), out = at::_foreach_mul(*a, *b))
ACLNN(ForeachMulScalar, (Ins a, In b, Outs out), out = at::_foreach_mul(*a, (*b).item()))
ACLNN(ForeachMulScalarV2, (Ins a, Number b, Outs out), out = at::_foreach_mul(*a, *b))
ACLNN(ForeachMulScalarList, (Ins a, Numbers b, Outs out), out = at::_foreach_mul(*a, *b))
ACLNN(ForeachDivList, (Ins a, Ins b, Outs out), out = at::_foreach_div(*a, *b))
ACLNN(ForeachDivScalarV2, (Ins a, Number b, Outs out), out = at::_foreach_div(*a, *b))
ACLNN(ForeachDivScalarList, (Ins a, Numbers b, Outs out), out = at::_foreach_div(*a, *b))
ACLNN(ForeachMaximumList, (Ins a, Ins b, Outs out), out = at::_foreach_maximum(*a, *b))
ACLNN(ForeachSqrt, (Ins a, Outs out), out = at::_foreach_sqrt(*a))
ACLNN(ForeachNeg, (Ins a, Outs out), out = at::_foreach_neg(*a))
ACLNN(ForeachReciprocal, (Ins a, Outs out), out = at::_foreach_reciprocal(*a))
ACLNN(ForeachCopy, (Ins a, Outs out), out = *a)
ACLNN(ForeachZeroInplace, (InOuts a), at::_foreach_zero_(*a))
ACLNN(ForeachNorm, (Ins a, Number order, Outs out), out = norms(a, *order))
ACLNN(ForeachLerpScalar, (Ins a, Ins end, Number weight, Outs out), out = at::_foreach_lerp(*a, *end, *weight))
ACLNN(ForeachAddcmulScalarV2, (Ins a, Ins b, Ins c, Number value, Outs out),
      out = at::_foreach_addcmul(*a, *b, *c, *value))
ACLNN(ForeachAddcdivScalarV2, (Ins a, Ins b, Ins c, Number value, Outs out),
      out = at::_foreach_addcdiv(*a, *b, *c, *value))
ACLNN(ForeachAddcdivScalarList, (Ins a, Ins b, Ins c, In values, Outs out),
      out = at::_foreach_addcdiv(*a, *b, *c, numbers(values)))
ACLNN(ForeachNonFiniteCheckAndUnscale, (InOuts gradients, InOut found_inf, In inverse_scale),
      at::Tensor found = *found_inf;
      at::_amp_foreach_non_finite_check_and_unscale_(*gradients, found, *inverse_scale))
