// Matrix products. The last parameter is the precision of the cube unit, which has no meaning here.
#include "operator.h"

using namespace simulated;

constexpr uint64_t PRODUCT_WORKSPACE = 16 * MIB;

ACLNN_WITH_WORKSPACE(Mm, PRODUCT_WORKSPACE, (In a, In b, Out out, int8_t), out = at::mm(*a, *b))
ACLNN_WITH_WORKSPACE(Matmul, PRODUCT_WORKSPACE, (In a, In b, Out out, int8_t), out = at::matmul(*a, *b))
ACLNN_WITH_WORKSPACE(BatchMatMul, PRODUCT_WORKSPACE, (In a, In b, Out out, int8_t), out = at::bmm(*a, *b))
ACLNN_WITH_WORKSPACE(Addmm, PRODUCT_WORKSPACE, (In c, In a, In b, Number beta, Number alpha, Out out, int8_t),
                     out = at::addmm(*c, *a, *b, *beta, *alpha))
ACLNN_WITH_WORKSPACE(InplaceAddmm, PRODUCT_WORKSPACE, (InOut c, In a, In b, Number beta, Number alpha, int8_t),
                     (*c).addmm_(*a, *b, *beta, *alpha))
ACLNN_WITH_WORKSPACE(Baddbmm, PRODUCT_WORKSPACE, (In c, In a, In b, Number beta, Number alpha, Out out, int8_t),
                     out = at::baddbmm(*c, *a, *b, *beta, *alpha))
ACLNN(Mv, (In a, In b, Out out, int8_t), out = at::mv(*a, *b))
ACLNN(Dot, (In a, In b, Out out), out = at::dot(*a, *b))
