// Sums, extremes, norms and orders along dimensions.
#include "operator.h"

using namespace simulated;

ACLNN(ReduceSum, (In a, Ints dims, bool keep, int, Out out), out = at::sum(*a, *dims, keep, (*out).scalar_type()))
ACLNN(Mean, (In a, Ints dims, bool keep, int, Out out), out = at::mean(*a, *dims, keep, (*out).scalar_type()))
ACLNN(Var, (In a, Ints dims, bool unbiased, bool keep, Out out), out = at::var(*a, dims.or_none(), unbiased, keep))
ACLNN(VarMean, (In a, Ints dims, int64_t correction, bool keep, Out mean, Out variance),
      outputs(variance, mean) = at::var_mean(*a, dims.or_none(), correction, keep))
ACLNN(Prod, (In a, int, Out out), out = at::prod(*a, (*out).scalar_type()))

ACLNN(All, (In a, Ints dims, bool keep, Out out), out = at::all(*a, dims.or_none(), keep).reshape((*out).sizes()))
ACLNN(Any, (In a, Ints dims, bool keep, Out out), out = at::any(*a, dims.or_none(), keep).reshape((*out).sizes()))

ACLNN(Max, (In a, Out out), out = at::max(*a))
ACLNN(Min, (In a, Out out), out = at::min(*a))
ACLNN(MaxDim, (In a, int64_t dim, bool keep, Out out, Out index), outputs(out, index) = at::max(*a, dim, keep))
ACLNN(MinDim, (In a, int64_t dim, bool keep, Out out, Out index), outputs(out, index) = at::min(*a, dim, keep))
ACLNN(Amax, (In a, Ints dims, bool keep, Out out), out = at::amax(*a, *dims, keep))
ACLNN(Amin, (In a, Ints dims, bool keep, Out out), out = at::amin(*a, *dims, keep))
ACLNN(ArgMax, (In a, int64_t dim, bool keep, Out out), out = at::argmax(*a, dim, keep))
ACLNN(ArgMin, (In a, int64_t dim, bool keep, Out out), out = at::argmin(*a, dim, keep))

ACLNN(Norm, (In a, Number p, Ints dims, bool keep, Out out), out = at::norm(*a, *p, *dims, keep))
ACLNN(LinalgVectorNorm, (In a, Number order, Ints dims, bool keep, int, Out out),
      out = at::linalg_vector_norm(*a, *order, dims.or_none(), keep))
ACLNN(LogSumExp, (In a, Ints dims, bool keep, Out out), out = at::logsumexp(*a, *dims, keep))

ACLNN(Cumsum, (In a, int64_t dim, int, Out out), out = at::cumsum(*a, dim, (*out).scalar_type()))
ACLNN(Sort, (In a, bool stable, int64_t dim, bool descending, Out out, Out index),
      outputs(out, index) = at::sort(*a, stable, dim, descending))
ACLNN(Argsort, (In a, int64_t dim, bool descending, Out index), index = at::argsort(*a, dim, descending))
ACLNN(Topk, (In a, int64_t k, int64_t dim, bool largest, bool sorted, Out out, Out index),
      outputs(out, index) = at::topk(*a, k, dim, largest, sorted))
ACLNN(Bincount, (In a, MaybeIn weights, int64_t least, Out out), out = at::bincount(*a, weights, least))
